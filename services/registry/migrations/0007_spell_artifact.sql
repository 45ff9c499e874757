-- 0007_spell_artifact.sql: as the field spells it
ALTER TABLE refused_artefact RENAME TO refused_artifact;
