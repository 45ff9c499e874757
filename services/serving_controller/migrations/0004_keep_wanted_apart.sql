-- 0004_keep_wanted_apart.sql: what shall be loaded, apart from all slots that ever were
SET LOCAL lock_timeout = '4s';

-- What a slot serves or shall serve: no row once it is withdrawn.
CREATE TABLE wanted (
    tenant      text        NOT NULL,
    slot        text        NOT NULL,
    served_name text        NOT NULL,
    group_name  text        NOT NULL,
    servable    jsonb       NOT NULL,
    is_pending  boolean     NOT NULL,
    since       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, slot, served_name),
    FOREIGN KEY (tenant, slot) REFERENCES slot (tenant, name)
);
CREATE INDEX wanted_served ON wanted (group_name, served_name);

-- Groups that serve or shall serve something. The version differs whenever what is wanted of a group does.
CREATE SEQUENCE version;
CREATE TABLE wanted_group (
    name    text   PRIMARY KEY,
    version bigint NOT NULL DEFAULT nextval('version')
);

WITH servables AS (
    SELECT tenant, name, desired AS servable, state = 'pending' AS is_pending
      FROM slot WHERE state IN ('pending', 'ready')
    UNION ALL
    SELECT tenant, name, route -> 'servable', false FROM slot WHERE route IS NOT NULL)
INSERT INTO wanted (tenant, slot, served_name, group_name, servable, is_pending)
SELECT tenant, name, (servable ->> 'full_name') || '@' || (servable ->> 'digest') AS served_name,
       CASE servable ->> 'kind'
           WHEN 'adapter' THEN 'serve-' || left(servable ->> 'base_sha', 12)
           ELSE 'full-' || left(encode(sha256(convert_to(
                    (servable ->> 'full_name') || '@' || (servable ->> 'digest'), 'UTF8')), 'hex'), 12)
       END,
       servable, is_pending
  FROM servables ORDER BY is_pending DESC
ON CONFLICT DO NOTHING;
INSERT INTO wanted_group (name) SELECT DISTINCT group_name FROM wanted;

ALTER TABLE slot DROP COLUMN groups;

-- Differs whenever the row does: what a replica has loaded is long, and read only then.
ALTER TABLE replica ADD COLUMN version bigint NOT NULL DEFAULT nextval('version');
