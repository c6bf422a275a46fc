#!/usr/bin/env python3
"""`dopsd-buckets NAME...`: create missing S3 buckets; AWS_* in the environment names the store."""

import sys

import boto3
from botocore.exceptions import ClientError

store = boto3.client("s3")
for name in sys.argv[1:]:
    try:
        store.head_bucket(Bucket=name)
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("404", "NoSuchBucket"):
            sys.exit(f"dopsd-buckets: {name}: {error}")
        store.create_bucket(Bucket=name)
        sys.stdout.write(f"created bucket {name}\n")
