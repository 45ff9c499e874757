-- 0004_rename_price_class.sql: the capacity type is called so everywhere
ALTER TABLE pool RENAME COLUMN price_class TO capacity_type;
ALTER TABLE attempt RENAME COLUMN price_class TO capacity_type;
