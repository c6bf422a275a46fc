-- Runs once, when the volume is new. POSTGRES_DB creates Prefect's database.
CREATE DATABASE mlflow OWNER dopsd;
