// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include <rpc/client.hpp>

namespace rpc {
namespace {

weft::net::connection_options connection_options() noexcept {
  weft::net::connection_options options;
  options.receive_size = message_bytes;
  options.private_data = greeting();
  return options;
}

client_options bounded(client_options options, weft::net::device& device) {
  options.room_bytes = std::min(options.room_bytes, device.pool().statistics().receive.max_bytes / 2);
  return options;
}

void check(const request& what) {
  if (what.method.empty() || what.method.size() > longest_method) {
    throw weft::error(weft::errc::invalid_argument, fmt::format("a method's name has 1 to {} bytes", longest_method));
  }
  if (what.arguments.size() > longest_arguments) {
    throw weft::error(weft::errc::message_too_large, fmt::format("{} bytes of arguments: at most {} are possible",
                                                                 what.arguments.size(), longest_arguments));
  }
}

/// Awaits `work`, at most as long as the request allows, and says in an error which call it was.
template <class T>
weft::task<T> limited(request what, weft::task<T> work) {
  try {
    co_return co_await weft::with_timeout(what.timeout, std::move(work));
  } catch (const weft::error& why) {
    throw why.within(fmt::format("call {}", printable(what.method)));
  }
}

}  // namespace

/// One call's use of a connection.
class client::visit {
 public:
  explicit visit(life& of) noexcept : of_(&of) { ++of.users; }
  visit(visit&& other) noexcept : of_(std::exchange(other.of_, nullptr)) {}
  visit& operator=(visit&&) = delete;
  ~visit() {
    if (of_ != nullptr) --of_->users;
  }
  [[nodiscard]] session& link() const noexcept { return of_->link; }

 private:
  life* of_;
};

client::client(weft::net::device& device, std::string address, client_options options)
    : device_(device), address_(std::move(address)), options_(bounded(options, device)), rooms_(options_.room_bytes) {}

weft::task<client::visit> client::enter() {
  while (current_ == nullptr && !closed_) {
    connected_.reset();
    co_await connected_.wait();
  }
  if (closed_) throw weft::error(weft::errc::closed, "this client");
  co_return visit(lives_.back());
}

weft::task<std::string> client::call_now(request what) {
  check(what);
  const auto inside = co_await enter();
  co_return co_await inside.link().call(what);
}

weft::task<std::string> client::call(request what) { return limited(what, call_now(what)); }

weft::task<weft::mr::buffer> client::fetch_now(request what, std::size_t most_bytes) {
  check(what);
  if (most_bytes == 0 || most_bytes > options_.room_bytes) {
    const std::string why = device_.pool().statistics().max_bytes_reason;
    throw weft::error(weft::errc::invalid_argument,
                      fmt::format("take room for {} bytes: 1 to {} are possible{}{}", most_bytes, options_.room_bytes,
                                  why.empty() ? "" : ", because ", why));
  }
  auto share = co_await common::permits::take(rooms_, most_bytes);
  auto memory = co_await device_.allocate(most_bytes, weft::mr::budget::receive);
  const auto inside = co_await enter();
  co_return co_await inside.link().fetch(what, std::move(memory), std::move(share));
}

weft::task<weft::mr::buffer> client::fetch(request what, std::size_t most_bytes) {
  return limited(what, fetch_now(what, most_bytes));
}

void client::begin(weft::net::connection peer) {
  std::erase_if(lives_, [](const life& each) { return each.users == 0; });
  current_ = &lives_.emplace_back(std::move(peer), device_.pool(), options_.patience).link;
  connected_.set();
}

weft::task<> client::connect() {
  auto peer = co_await device_.connect(address_, connection_options());
  begin(std::move(peer));
}

weft::task<> client::run() {
  weft::net::back_off pauses(options_.retry);
  while (!closed_) {
    const weft::error why = co_await current_->run();
    const bool has_served = std::exchange(current_, nullptr)->has_served();
    if (closed_) co_return;
    fmt::print(stderr, "rpc: {}: {}\n", address_, printable(why.what()));
    // A server that only accepts connections counts as none.
    if (has_served) pauses = weft::net::back_off(options_.retry);
    if (!has_served) co_await weft::sleep_for(pauses.next());
    auto peer = co_await weft::net::connect_with_retry(device_, address_, connection_options(), options_.retry);
    begin(std::move(peer));
  }
}

weft::task<> client::close() {
  closed_ = true;
  connected_.set();
  if (current_ != nullptr) co_await current_->close();
}

}  // namespace rpc
