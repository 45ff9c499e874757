-- 0034_log_in_to_the_page.sql: sessions of people who logged in to the page with an API key; a cookie is kept as its sha256 alone
SET LOCAL lock_timeout = '4s';
CREATE TABLE page_session (
    sha256 text PRIMARY KEY,
    key_id text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
);
CREATE INDEX page_session_age ON page_session (expires_at);
