-- 0011_rename_place_of_a_candidate.sql: which replica has an evaluation's candidate is its host, as serving calls it
SET LOCAL lock_timeout = '4s';
ALTER TABLE place RENAME TO host;
