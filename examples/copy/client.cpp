// SPDX-License-Identifier: Apache-2.0
#include "client.hpp"

#include <fmt/core.h>

#include <cstdio>
#include <filesystem>
#include <optional>

#include "failure.hpp"
#include "file.hpp"
#include "progress.hpp"
#include "receive_file.hpp"
#include "send_file.hpp"
#include "session.hpp"

namespace copy {
namespace {

void finish(progress& shown, const digest& sha) { shown.finish(", sha256 " + to_string(sha)); }

weft::task<session> open_session(station& home, std::string address) {
  auto peer = co_await home.device.connect(address, connection_options(home.patience, home.resume_within));
  co_return session(home, std::move(peer));
}

weft::task<> put_one(session& link, const std::string& path) {
  std::optional<source_file> source;
  const auto open = [&] { source.emplace(path); };
  co_await weft::offload(open);
  const std::string name = std::filesystem::path(path).filename();
  progress shown(name, source->size());
  const message request = put_message{.size = source->size(), .name = name};
  co_await link.send(pack(request));
  const digest sha = co_await send_file(link, *source, &shown);
  finish(shown, sha);
}

weft::task<std::uint64_t> request_file(session& link, const std::string& name) {
  const message request = get_message{.name = name};
  co_await link.send(pack(request));
  const message said = co_await link.receive();
  if (const auto* const refused = std::get_if<failed_message>(&said))
    throw failure("the peer refuses: " + refused->text);
  const auto* const offer = std::get_if<offer_message>(&said);
  if (offer == nullptr) throw unexpected(said, "'offer'");
  co_return offer->size;
}

weft::task<> get_one(session& link, const get_options& options) {
  std::filesystem::path wanted = options.output.empty() ? options.name : options.output;
  if (!wanted.has_filename()) wanted /= std::filesystem::path(options.name).filename();  // "folder/"
  const std::string name = wanted.filename();
  std::optional<directory> place;
  std::optional<part_file> target;
  const auto create = [&] {
    const bool here = options.output.empty() || !wanted.has_parent_path();
    place.emplace(here ? std::string(".") : std::string(wanted.parent_path()));
    target.emplace(*place, name);
  };
  co_await weft::offload(create);
  const std::uint64_t size = co_await request_file(link, options.name);
  progress shown(name, size);
  const digest sha = co_await receive_file(link, *std::move(target), size, options.sync, &shown);
  finish(shown, sha);
}

}  // namespace

weft::task<std::size_t> put(weft::net::device& device, put_options options) {
  station home(device, options.patience, options.resume_within);
  session link = co_await open_session(home, options.address);
  std::size_t failures = 0;
  for (const std::string& path : options.files) {
    try {
      co_await put_one(link, path);
    } catch (const failure& why) {
      ++failures;
      fmt::print(stderr, "copy: put {}: {}\n", printable(path), printable(why.what()));
    } catch (const weft::error& why) {
      throw why.within(fmt::format("put {}", printable(path)));
    }
  }
  co_await link.peer().close();
  co_return failures;
}

weft::task<> get(weft::net::device& device, get_options options) {
  station home(device, options.patience, options.resume_within);
  session link = co_await open_session(home, options.address);
  const std::string context = fmt::format("get {}", printable(options.name));
  std::string trouble;
  try {
    co_await get_one(link, options);
  } catch (const failure& why) {
    trouble = why.what();
  } catch (const weft::error& why) {
    throw why.within(context);
  }
  co_await link.peer().close();
  if (!trouble.empty()) throw failure(context + ": " + trouble);
}

}  // namespace copy
