-- 0004_rename_price_class.sql: the capacity type is called so everywhere
ALTER TABLE cost RENAME COLUMN price_class TO capacity_type;
