-- The end of every upgrade: tasks that a dump brought from another server get their place in the listing, with the
-- settings of the function already in place. See 3_tasks/listed.sql.

DO $$
BEGIN
    PERFORM pgqueue._restamp_tasks();
END $$;
