// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool.hpp>
#include <weft/net/connection/peer_words.hpp>
#include <weft/net/connection/receive_memory.hpp>
#include <weft/net/device/joint_listener.hpp>
#include <weft/net/rails/rails_link.hpp>
#include <weft/net/rails/registry.hpp>
#include <weft/net/rails/transport.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::net::rails {
namespace {

std::vector<std::string> split(std::string_view addresses) {
  std::vector<std::string> all;
  for (;;) {
    const std::size_t plus = addresses.find('+');
    all.emplace_back(addresses.substr(0, plus));
    if (plus == std::string_view::npos) return all;
    addresses.remove_prefix(plus + 1);
  }
}

using fabrics = std::vector<std::unique_ptr<transport>>;

// What the first rail needs beside what the connection asks for.
set_up_options with_room(set_up_options how) noexcept {
  how.max_requests = static_cast<std::uint16_t>(how.max_requests + control_parts);
  how.max_receives = static_cast<std::uint16_t>(how.max_receives + control_receives);
  return how;
}

// Of messages that a connection keeps until the peer has them.
constexpr std::size_t kept_bytes = std::size_t{64} << 10;

// For the rails that follow: the depths without that, and nothing that the user may take away.
set_up_options for_later(const set_up_options& how) {
  set_up_options later = with_room(how);
  later.private_data = {};
  later.source = {};
  later.first_receives = nullptr;
  return later;
}

task<mr::buffer> find_one(mr::pool& pool, std::size_t bytes, time_point deadline) {
  auto found = co_await find_receive_memory(pool, 1, bytes, deadline);
  co_return std::move(found.front());
}

task<std::unique_ptr<link>> bundle(std::shared_ptr<registry> all, const fabrics& ways, std::unique_ptr<link> first,
                                   std::vector<rail_route> routes, bool connects, const set_up_options& how) {
  rails_set_up made;
  made.routes = std::move(routes);
  for (const auto& each : ways) made.ways.push_back(each.get());
  made.connects = connects;
  made.how = for_later(how);
  made.receives = co_await find_receive_memory(*how.pool, control_receives, how.receive_bytes, how.deadline);
  made.control_memory = co_await find_one(*how.pool, rail::control_memory_bytes(), how.deadline);
  made.kept_memory = co_await find_one(*how.pool, kept_bytes, how.deadline);
  co_return std::make_unique<rails_link>(std::move(all), std::move(first), std::move(made));
}

class request final : public link_request {
 public:
  request(std::unique_ptr<link_request> inner, const fabrics& ways, std::shared_ptr<registry> all) noexcept
      : inner_(std::move(inner)), ways_(ways), registry_(std::move(all)) {}

  [[nodiscard]] std::string_view peer() const noexcept override { return inner_->peer(); }
  [[nodiscard]] std::span<const std::byte> private_data() const noexcept override { return inner_->private_data(); }

  [[nodiscard]] task<std::unique_ptr<link>> accept(const set_up_options& options) override {
    const set_up_options wider = with_room(options);
    std::unique_ptr<link> first = co_await inner_->accept(wider);
    std::vector<rail_route> routes;
    for (std::size_t i = 0; i < max_rails; ++i) {
      routes.push_back({.way = ways_[(inner_->fabric + i) % ways_.size()].get()});
    }
    co_return co_await bundle(registry_, ways_, std::move(first), std::move(routes), false, options);
  }
  [[nodiscard]] task<> reject(std::span<const std::byte> private_data) override { return inner_->reject(private_data); }

 private:
  std::unique_ptr<link_request> inner_;
  const fabrics& ways_;
  const std::shared_ptr<registry> registry_;
};

// Hands rails that join over one of the ways to their connections, whether or not anybody waits for peers. Those of a
// connection that there is not are told so.
class joining_rails final : public request_filter {
 public:
  joining_rails(std::shared_ptr<registry> all, std::size_t way) noexcept : registry_(std::move(all)), way_(way) {}

  [[nodiscard]] bool takes(std::unique_ptr<link_request>& request) noexcept override try {
    const auto said = join::unpack(request->private_data());
    if (!said) return false;
    request->fabric = way_;
    if (!registry::deliver(registry_, *said, request)) {
      run_in_background(*executor_core::current(), refuse(std::move(request)), "refuse a rail");
    }
    return true;
  } catch (const std::bad_alloc&) {  // the peer asks again
    request.reset();
    return true;
  }

 private:
  static task<> refuse(std::unique_ptr<link_request> asked) {
    try {
      co_await asked->reject(std::as_bytes(std::span(no_such_connection)));
    } catch (const std::exception&) {  // then the peer hears of the end alone
    }
  }

  const std::shared_ptr<registry> registry_;
  const std::size_t way_;
};

// Hands all but rails that join to whoever listens.
class listener final : public link_listener {
 public:
  listener(std::unique_ptr<link_listener> inner, std::string address, const fabrics& ways,
           std::shared_ptr<registry> all) noexcept
      : inner_(std::move(inner)), address_(std::move(address)), ways_(ways), registry_(std::move(all)) {}

  [[nodiscard]] std::string_view address() const noexcept override { return address_; }
  [[nodiscard]] task<std::unique_ptr<link_request>> next() override { return next_of(inner_, ways_, registry_); }
  void close() noexcept override { inner_->close(); }

 private:
  // The listener may go before the task begins.
  static task<std::unique_ptr<link_request>> next_of(std::shared_ptr<link_listener> inner, const fabrics& ways,
                                                     std::shared_ptr<registry> all) {
    std::unique_ptr<link_request> asked = co_await inner->next();
    if (asked == nullptr) co_return nullptr;
    co_return std::make_unique<request>(std::move(asked), ways, all);
  }

  const std::shared_ptr<link_listener> inner_;
  const std::string address_;
  const fabrics& ways_;
  const std::shared_ptr<registry> registry_;
};

class rails_transport final : public transport {
 public:
  explicit rails_transport(fabrics ways) : ways_(std::move(ways)) {
    for (const auto& each : ways_) {
      name_.append(name_.empty() ? "" : "+").append(each->name());
      joining_.emplace_back(registry_, joining_.size());
    }
  }

  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] const std::shared_ptr<mr::domain>& shared_domain() const noexcept override {
    return ways_.front()->shared_domain();
  }
  [[nodiscard]] std::vector<std::shared_ptr<mr::domain>> domains() const override {
    std::vector<std::shared_ptr<mr::domain>> all;
    for (const auto& each : ways_) all.push_back(each->shared_domain());
    return all;
  }
  [[nodiscard]] native_features features() const noexcept override {
    native_features common = ways_.front()->features();
    for (const auto& each : ways_) common = common & each->features();
    common.rails = true;
    return common;
  }
  [[nodiscard]] landing_place landing() const noexcept override { return ways_.front()->landing(); }
  [[nodiscard]] bool listens_first() const noexcept override {
    return std::any_of(ways_.begin(), ways_.end(), [](const auto& each) { return each->listens_first(); });
  }
  [[nodiscard]] bool understands(std::string_view address) const noexcept override {
    return ways_.front()->understands(split(address).front());
  }

  [[nodiscard]] task<new_link> connect(std::string_view address, const set_up_options& options) override {
    const std::vector<std::string> addresses = split(address);
    const std::size_t count = std::max(addresses.size(), ways_.size());
    if (count > max_rails) {
      throw error(errc::invalid_argument, fmt::format("{} rails: a connection has at most {}", count, max_rails));
    }
    const set_up_options wider = with_room(options);
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < count; ++i) {
      if (!is_tried_before(addresses, i)) all.push_back(i);
    }
    const std::size_t last = all.back();
    std::string failures;
    for (const std::size_t first : all) {
      std::vector<rail_route> routes;
      for (std::size_t j = 0; j < count; ++j) routes.push_back(route(addresses, (first + j) % count));
      std::optional<new_link> made;
      const std::string over = fmt::format("{}over {}", failures, routes[0].way->name());
      try {
        made = co_await routes[0].way->connect(routes[0].address, wider);
      } catch (const error& why) {
        if (all.size() == 1) throw;
        if (first == last || !may_reach_otherwise(why)) throw why.within(over);
        failures = fmt::format("{}: {}; ", over, why.what());
      }
      if (!made) continue;
      made->link = co_await bundle(registry_, ways_, std::move(made->link), std::move(routes), true, options);
      co_return *std::move(made);
    }
    throw error(errc::invalid_address, "no address");
  }

  [[nodiscard]] task<std::unique_ptr<link_listener>> listen(std::string_view address,
                                                            const listen_options& options) override {
    std::vector<std::string> addresses = split(address);
    const std::size_t given = addresses.size();
    std::vector<fabric_listener> parts;
    for (std::size_t i = 0; i < std::max(given, ways_.size()); ++i) {
      // Fabrics that share one network need one listener for each address.
      if (i >= given && is_of_same_kind(i)) continue;
      try {
        listen_options with_filter = options;
        with_filter.filter = &joining_[i % ways_.size()];
        auto made = co_await ways_[i % ways_.size()]->listen(addresses[i % given], with_filter);
        if (i < given) addresses[i] = made->address();
        parts.emplace_back(i % ways_.size(), std::move(made));
      } catch (const error& why) {
        // A fabric that does not reach the address of another is not listened on.
        if (why.code() == errc::canceled || i < given) throw;
      }
    }
    co_return std::make_unique<listener>(join_listeners(std::move(parts)), fmt::format("{}", fmt::join(addresses, "+")),
                                         ways_, registry_);
  }

 private:
  // Whether an earlier rail goes the same way to the same address.
  [[nodiscard]] bool is_tried_before(const std::vector<std::string>& addresses, std::size_t place) const {
    const rail_route its = route(addresses, place);
    for (std::size_t i = 0; i < place; ++i) {
      const rail_route earlier = route(addresses, i);
      if (earlier.way->name() == its.way->name() && earlier.address == its.address) return true;
    }
    return false;
  }
  [[nodiscard]] bool is_of_same_kind(std::size_t place) const noexcept {
    const std::string_view its = ways_[place % ways_.size()]->name();
    return std::any_of(ways_.begin(), ways_.begin() + static_cast<std::ptrdiff_t>(place % ways_.size()),
                       [&](const auto& each) { return each->name() == its; });
  }
  [[nodiscard]] rail_route route(const std::vector<std::string>& addresses, std::size_t place) const {
    return {.way = ways_[place % ways_.size()].get(), .address = addresses[place % addresses.size()]};
  }
  // Whether another rail may reach the peer: not where this end is at fault, or the peer has answered.
  static bool may_reach_otherwise(const error& why) noexcept {
    return why.code() != errc::canceled && why.code() != errc::invalid_argument && why.code() != errc::no_memory &&
           why.code() != errc::peer_rejected && why.code() != std::errc::no_buffer_space;
  }

  const fabrics ways_;
  std::string name_;
  const std::shared_ptr<registry> registry_ = std::make_shared<registry>();
  std::deque<joining_rails> joining_;
};

}  // namespace

std::unique_ptr<transport> open_transport(std::vector<std::unique_ptr<transport>> ways) {
  if (ways.empty() || ways.size() > max_rails) {
    throw error(errc::invalid_argument, fmt::format("a device has 1 to {} rails, not {}", max_rails, ways.size()));
  }
  return std::make_unique<rails_transport>(std::move(ways));
}

}  // namespace weft::net::rails
