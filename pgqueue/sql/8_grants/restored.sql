-- The end of every upgrade: tasks that a dump brought from another server get their place in the listing. By then the
-- function has its settings. See 5_verbs/queue/listed.sql.

DO $$
BEGIN
    PERFORM pgqueue._restamp_tasks();
END $$;
