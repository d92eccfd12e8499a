// SPDX-License-Identifier: Apache-2.0
// Copies files between machines by one-sided RDMA writes: `copy --help`.
#include <weft/weft.hpp>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <signal.h>

#include <chrono>
#include <climits>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "client.hpp"
#include "protocol.hpp"
#include "server.hpp"
#include "session.hpp"

namespace {

enum exit_code : int { success = 0, failed = 1, wrong_usage = 2 };

/// What the command line asks for.
struct command {
  copy::serve_options serve;
  std::string listen_address = "127.0.0.1:7471";
  weft::net::listener_options listening{.max_connections = 64};
  copy::put_options put;
  copy::get_options get;
  enum class verb { serve, put, get } what = verb::serve;
  std::string device = "auto";
  double timeout_seconds = 30;
  double resume_within_seconds = 0;
  std::string trace;

  void add_to(CLI::App& app);

 private:
  void add_common(CLI::App& verb_app);
};

void command::add_common(CLI::App& verb_app) {
  verb_app
      .add_option("--device", device,
                  "auto, or the transport by name: iwarp, shm or verbs:DEVICE; several with a + between them are rails")
      ->type_name("NAME")
      ->capture_default_str();
  verb_app.add_option("--timeout", timeout_seconds, "how long to wait for a peer that does not go on")
      ->check(CLI::Range(0.001, 1e6))
      ->type_name("SECONDS")
      ->capture_default_str();
  verb_app
      .add_option("--resume-within", resume_within_seconds,
                  "how long a connection of several rails waits for one of them once all are lost; both sides choose")
      ->check(CLI::Range(0.0, 86400.0))
      ->type_name("SECONDS")
      ->capture_default_str();
  verb_app.add_option("--trace", trace, "record what happens, for ui.perfetto.dev")->type_name("FILE");
}

void command::add_to(CLI::App& app) {
  app.require_subcommand(1);

  CLI::App& serving = *app.add_subcommand("serve", "take and give the files of a directory");
  serving.add_option("DIR", serve.directory, "the directory")->type_name("")->required();
  serving
      .add_option("--listen", listen_address,
                  "where, or with rails at each: HOST:PORT+HOST:PORT; 0.0.0.0 lets everybody in, and there are no "
                  "passwords")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  serving.add_option("--max-connections", listening.max_connections, "at a time; peers beyond are told so")
      ->check(CLI::Range(1, 1'000'000))
      ->type_name("COUNT")
      ->capture_default_str();
  serving.add_flag("--sync", serve.sync, "have each file on the disk before it is confirmed");
  add_common(serving);
  serving.callback([this] { what = verb::serve; });

  CLI::App& putting = *app.add_subcommand("put", "put files on a server, in place of those of the same name");
  putting.add_option("FILE... HOST:PORT", put.files, "the files, then the server")
      ->type_name("")
      ->required()
      ->expected(2, INT_MAX);
  add_common(putting);
  putting.callback([this] {
    what = verb::put;
    put.address = std::move(put.files.back());
    put.files.pop_back();
  });

  CLI::App& getting = *app.add_subcommand("get", "get a file from a server");
  getting.add_option("NAME", get.name, "its name there")->type_name("")->required();
  getting.add_option("HOST:PORT", get.address, "the server")->type_name("")->required();
  getting.add_option("--output", get.output, "where to; if not given, under the same name here")->type_name("FILE");
  getting.add_flag("--sync", get.sync, "have the file on the disk before it gets its name");
  add_common(getting);
  getting.callback([this] { what = verb::get; });
}

weft::task<int> run_verb(weft::net::device& device, command what) {
  switch (what.what) {
    case command::verb::serve: {
      auto listener = co_await device.listen(what.listen_address, what.listening);
      co_await copy::serve(device, listener, what.serve);
      break;
    }
    case command::verb::put:
      co_return co_await copy::put(device, what.put) == 0 ? success : failed;
    case command::verb::get:
      co_await copy::get(device, what.get);
      break;
  }
  co_return success;
}

weft::task<> stop_at_signal(weft::signal_set& signals, int& signal, weft::scope& tasks) {
  signal = co_await signals.next();
  tasks.request_stop();
}

/// Runs `work` to its end, or stops it at the first signal: that it is stopped in order leaves nothing behind.
weft::task<int> run_until_signal(weft::signal_set& signals, weft::task<int> work, bool signal_is_success) {
  int result = failed;
  int signal = 0;
  const auto both = [&](weft::scope& tasks) -> weft::task<> {
    tasks.spawn(stop_at_signal(signals, signal, tasks));
    result = co_await std::move(work);
    tasks.request_stop();
  };
  try {
    co_await weft::with_scope(weft::on_failure::stop_siblings, both);
  } catch (const weft::error& why) {
    if (signal == 0) throw;
  }
  if (signal == 0) co_return result;
  if (signal_is_success) co_return success;
  fmt::print(stderr, "copy: interrupted ({})\n", ::sigdescr_np(signal));
  co_return failed;
}

int run(command what) {
  // Before any thread starts, so that none takes these signals.
  weft::signal_set signals({SIGINT, SIGTERM});
  // Errors of write(2), not ends of the process that would leave a partial file behind.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);

  std::optional<weft::trace_file> trace;
  if (!what.trace.empty()) trace.emplace(what.trace);
  weft::net::device_options memory;
  memory.pool.max_bytes = copy::pool_bytes;
  auto device = weft::net::device::open(what.device, memory);
  if (!device.passed_over().empty()) fmt::print(stderr, "copy: {}\n", device.passed_over());
  const auto patience = std::chrono::duration_cast<weft::duration>(std::chrono::duration<double>(what.timeout_seconds));
  what.serve.patience = what.put.patience = what.get.patience = patience;
  const auto resume_within =
      std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(what.resume_within_seconds));
  what.serve.resume_within = what.put.resume_within = what.get.resume_within = resume_within;
  weft::executor_options o;
  o.policy = weft::poll_policy::sleep;
  weft::executor loop(o);
  const int result = loop.run(run_until_signal(signals, run_verb(device, what), what.what == command::verb::serve));
  if (trace) trace->close();
  return result;
}

}  // namespace

// What escapes would be a mistake in the definition of the options. NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  CLI::App app("Copies files between machines by one-sided RDMA writes, with SHA-256 checked end to end.", "copy");
  app.footer("Exit codes: 0 success, 1 failure, 2 wrong usage.");
  command what;
  what.add_to(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& wrong) {
    fmt::print(stderr, "copy: {} (copy --help)\n", wrong.what());
    return wrong_usage;
  }
  try {
    return run(what);
  } catch (const std::exception& why) {
    fmt::print(stderr, "copy: {}\n", copy::printable(why.what()));
    return failed;
  }
}
