// SPDX-License-Identifier: Apache-2.0
// Copies files between machines by one-sided RDMA writes: `copy --help`.
#include <weft/weft.hpp>

#include <CLI/CLI.hpp>

#include <signal.h>

#include <chrono>
#include <climits>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "client.hpp"
#include "server.hpp"
#include "session.hpp"
#include <common/network.hpp>
#include <common/program.hpp>

namespace {

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
  common::add_device(verb_app, device);
  common::add_patience(verb_app, timeout_seconds);
  common::add_resume_within(verb_app, resume_within_seconds);
  verb_app.add_option("--trace", trace, "record what happens, for ui.perfetto.dev")->type_name("FILE");
}

void command::add_to(CLI::App& app) {
  app.require_subcommand(1);

  CLI::App& serving = *app.add_subcommand("serve", "take and give the files of a directory");
  serving.add_option("DIR", serve.directory, "the directory")->type_name("")->required();
  common::add_value(
      serving, "--listen", listen_address,
      "where, or with rails at each: HOST:PORT+HOST:PORT; 0.0.0.0 lets everybody in, and there are no passwords",
      "HOST:PORT");
  common::add_value(serving, "--max-connections", listening.max_connections, "at a time; peers beyond are told so",
                    "COUNT")
      .check(CLI::Range(1, 1'000'000));
  serving.add_flag("--sync", serve.sync, "have each file on the disk before it is confirmed");
  add_common(serving);
  serving.callback([this] { what = verb::serve; });

  CLI::App& putting = *app.add_subcommand("put", "put files on a server, in place of those of the same name");
  putting.add_option("FILES", put.files, "the files, then the server")
      ->type_name("FILE... HOST:PORT")
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
  getting.add_option("ADDRESS", get.address, "the server")->type_name("HOST:PORT")->required();
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
      co_return co_await copy::put(device, what.put) == 0 ? common::success : common::failed;
    case command::verb::get:
      co_await copy::get(device, what.get);
      break;
  }
  co_return common::success;
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
  auto device = common::open_device("copy", what.device, memory);
  const auto patience = common::in_seconds<weft::duration>(what.timeout_seconds);
  what.serve.patience = what.put.patience = what.get.patience = patience;
  const auto resume_within = common::in_seconds<std::chrono::milliseconds>(what.resume_within_seconds);
  what.serve.resume_within = what.put.resume_within = what.get.resume_within = resume_within;
  weft::executor_options o;
  o.policy = weft::poll_policy::sleep;
  weft::executor loop(o);
  const auto ended = run_until_signal(loop, signals, run_verb(device, what));
  if (trace) trace->close();
  return common::exit_code_of(ended, "copy", what.what == command::verb::serve);
}

}  // namespace

// What escapes would be a mistake in the definition of the options. NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  CLI::App app("Copies files between machines by one-sided RDMA writes, with SHA-256 checked end to end.", "copy");
  app.footer("Exit codes: 0 success, 1 failure, 2 wrong usage.");
  command what;
  what.add_to(app);
  return common::run_program(app, argc, argv, [&] { return run(what); });
}
