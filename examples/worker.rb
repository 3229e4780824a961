# A worker in Ruby: all that one needs is a PostgreSQL client that can wait for a notification.
#
#     apt-get install ruby ruby-pg
#     ruby examples/worker.rb letters &
#     psql "$(pgqueue server start)" -c "SELECT id FROM pgqueue.put('letters', '{\"to\": \"ada@example.org\"}')"
#
# The DSN is PGQUEUE_DSN or DATABASE_URL, else that of the embedded server. The worker ends with Ctrl-C or SIGTERM, after
# the task that it is at. Kill it by SIGKILL during a task: another worker has the task within a second.
# docs/guides/other-languages.md explains each call.
require "json"
require "pg"

class Worker
  FOR_NOW = %w[40P01 PQ007].freeze

  def initialize(dsn, queues, &handler)
    @dsn, @queues, @handler = dsn, PG::TextEncoder::Array.new.encode(queues), handler
    @stop = false
    @refusals = 0 # in succession, before the server has let it in for the first time; nil after that
  end

  def stop = @stop = true

  def run
    pause = 0.05
    until @stop
      begin
        connect unless @db
        open_session unless @session
        settle if @settled # its answer was lost with the connection, or the server refused the call for now
        until @stop
          step
          pause = 0.05
        end
        @db.exec("SELECT pgqueue.close_session()") # gives back what is not settled
      rescue PG::ConnectionBad, PG::UnableToSend, PG::ServerError => error
        for_now = for_now?(error)
        what = for_now ? "the server refused a call for now" : "lost the server"
        warn "#{what}, trying again in #{pause} s: #{error.message.lines.first&.strip}"
        disconnect unless for_now
        sleep(pause * rand(0.5..1))
        pause = [pause * 2, 5].min
      end
    end
  ensure
    disconnect
  end

  private

  def connect
    @db = PG.connect(@dsn, connect_timeout: 5, keepalives_idle: 5, keepalives_interval: 2, keepalives_count: 3,
                           tcp_user_timeout: 10_000, application_name: "worker.rb")
  end

  def open_session
    @db.exec_params("SELECT pgqueue.open_session(label => $1)", ["worker.rb, process #{Process.pid}"])
    @session = true
    @refusals = nil
  end

  def disconnect
    @db&.close unless @db&.finished?
    @db = @session = nil
  end

  # Whether the same call on this connection, a little later, may succeed: there was a deadlock, or a lock could not be
  # had, and nothing was changed. False if the connection is lost. An error that a new attempt does not end is raised.
  def for_now?(error)
    lives = @db && !@db.finished? && @db.status == PG::CONNECTION_OK
    raise error if lives ? !FOR_NOW.include?(error.result&.error_field(PG::PG_DIAG_SQLSTATE)) : refused?(error)

    lives
  end

  # Whether the server is there and has never let this worker in, for example since the password is wrong: a worker that
  # tries again hides that. A server that starts, or has no connection left, lets it in later. Twice, since the server
  # may have come up between the attempt and the ping.
  def refused?(error)
    return false if @refusals.nil?

    answers = PG::Connection.ping(@dsn) == PG::PQPING_OK
    is_full = error.message.match?(/too many (connections|clients)|connection slots are reserved/)
    @refusals = answers && !is_full ? @refusals + 1 : 0
    @refusals > 1
  end

  # Take a task and do it, or sleep until one may be there.
  def step
    task = @db.exec_params("SELECT * FROM pgqueue.take_or_listen($1)", [@queues]).first
    if task["id"]
      @settled = [task["id"], task["token"], attempt(task)]
      settle
    else
      @db.wait_for_notify(task["again"].to_f)
      nil while @db.notifies # several puts are one reason to look
    end
  end

  # The error, or nil if there was none.
  def attempt(task)
    @handler.call(JSON.parse(task["data"]), task)
    nil
  rescue StandardError => error
    "#{error.class}: #{error.message}"
  end

  def settle
    id, token, error = @settled
    refused =
      if error.nil?
        @db.exec_params("SELECT problem FROM pgqueue.ack($1, $2)", [id, token])
      else
        @db.exec_params("SELECT problem FROM pgqueue.release($1, $2, delay => '10 s', error => $3)", [id, token, error])
      end.first["problem"]
    @settled = nil
    warn "task #{id} was not settled: it is #{refused}" if refused
  end
end

if $PROGRAM_NAME == __FILE__
  $stdout.sync = true
  dsn = ENV["PGQUEUE_DSN"] || ENV["DATABASE_URL"] || `pgqueue server start`.strip
  worker = Worker.new(dsn, ARGV.empty? ? ["letters"] : ARGV) do |data, task|
    puts "#{task["id"]} #{task["queue"]} #{Time.now.to_f} #{JSON.generate(data)}"
    sleep data["seconds"] if data.is_a?(Hash) && data["seconds"]
    raise data["error"] if data.is_a?(Hash) && data["error"]
  end
  %w[INT TERM].each { |name| trap(name) { worker.stop } }
  begin
    worker.run
  rescue PG::Error => error
    abort "worker.rb ends: #{error.message.strip}"
  end
end
