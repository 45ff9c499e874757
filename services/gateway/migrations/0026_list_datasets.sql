-- 0026_list_datasets.sql: a tenant's datasets are listed, newest first
SET LOCAL lock_timeout = '4s';
CREATE INDEX dataset_of_tenant ON dataset (tenant, created_at DESC, dataset_id DESC);
