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
        connect
        pause = 0.05
        step until @stop
        @db.exec("SELECT pgqueue.close_session()") # gives back what is not settled
      rescue PG::ConnectionBad, PG::UnableToSend, PG::ServerError => error
        raise unless @db.nil? || @db.finished? || @db.status != PG::CONNECTION_OK
        raise if refused?(error)

        warn "lost the server, trying again in #{pause} s: #{error.message.lines.first&.strip}"
        sleep(pause * rand(0.5..1))
        pause = [pause * 2, 5].min
      ensure
        @db&.close unless @db&.finished?
        @db = nil
      end
    end
  end

  private

  def connect
    @db = PG.connect(@dsn, connect_timeout: 5, keepalives_idle: 5, keepalives_interval: 2, keepalives_count: 3,
                           tcp_user_timeout: 10_000, application_name: "worker.rb")
    @db.exec_params("SELECT pgqueue.open_session(label => $1)", ["worker.rb, process #{Process.pid}"])
    @refusals = nil
    settle if @settled # its answer was lost with the connection
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
