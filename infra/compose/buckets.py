#!/usr/bin/env python3
"""`dopsd-buckets NAME...`: make the S3 buckets that are missing; the store and its keys come from
AWS_* in the environment.
"""

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
        sys.stdout.write(f"made {name}\n")
