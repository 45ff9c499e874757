-- 0008_spell_artifact.sql: as the field spells it
ALTER TABLE artefact RENAME TO artifact;
ALTER TABLE evaluation RENAME COLUMN artefact TO artifact;
