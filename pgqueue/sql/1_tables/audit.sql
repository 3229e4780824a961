-- The audit trail: a row for each call of an operators' verb. 2_base/record.sql writes them, 7_operations/audit.sql
-- shows and removes them.

CREATE TABLE pgqueue.audit_entry (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL,
    count       bigint,
    role_oid    oid         NOT NULL,
    role        name        NOT NULL,
    login       name        NOT NULL,
    verb        text        NOT NULL,
    queue       text,
    object      text,
    detail      text,
    actor       text
);
COMMENT ON TABLE  pgqueue.audit_entry          IS
    'Calls of operators'' verbs: the newest 10,000, and older ones until the next cleaning.';
COMMENT ON COLUMN pgqueue.audit_entry.role     IS 'The name that the role had. A rename does not change it.';
COMMENT ON COLUMN pgqueue.audit_entry.role_oid IS 'With the name: the role that sees the row as its own.';
COMMENT ON COLUMN pgqueue.audit_entry.login    IS 'The session''s user, which may have become `role` by SET ROLE.';
COMMENT ON COLUMN pgqueue.audit_entry.actor    IS
    'The session''s setting `pgqueue.actor`: it gives no right and proves nothing.';
