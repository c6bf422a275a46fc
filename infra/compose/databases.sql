-- Run once, when the volume is new; Prefect's database is made by POSTGRES_DB.
CREATE DATABASE mlflow OWNER dopsd;
