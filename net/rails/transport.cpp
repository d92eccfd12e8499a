// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool.hpp>
#include <weft/net/link/joint_listener.hpp>
#include <weft/net/link/native_protocol.hpp>
#include <weft/net/link/peer_words.hpp>
#include <weft/net/link/receive_memory.hpp>
#include <weft/net/link/try_addresses.hpp>
#include <weft/net/rails/rails_link.hpp>
#include <weft/net/rails/registry.hpp>
#include <weft/net/rails/transport.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/system/random.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

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

// Adds the first rail's own requests and receives to the connection's.
set_up_options with_room(set_up_options how) noexcept {
  how.max_requests = static_cast<std::uint16_t>(how.max_requests + control_parts);
  how.max_receives = static_cast<std::uint16_t>(how.max_receives + control_receives);
  return how;
}

// The connection's greeting, adapted to the rail it goes over, which the connection does not know.
std::vector<std::byte> greeting_over(const transport& way, std::span<const std::byte> private_data) {
  std::vector<std::byte> words(private_data.begin(), private_data.end());
  if (auto said = greeting::unpack(words)) {
    said->fabric = static_cast<std::uint8_t>(way.domain().fabric());
    said->landing = way.landing();
    std::ranges::copy(said->pack(), words.begin());
  }
  return words;
}

// Whether the sender of this greeting wants a connection of rails.
bool asks_for_rails(std::span<const std::byte> private_data) noexcept {
  const auto said = greeting::unpack(private_data);
  return said && said->features.rails;
}

// The id of the connection follows the user's private data in the answer, which a connection manager may have padded.
connection_id id_in(std::span<const std::byte> answer) {
  const auto said = greeting::unpack(answer);
  const std::size_t at = greeting::bytes + said.value_or(greeting()).user_bytes;
  connection_id id{};
  if (answer.size() >= at + id.size())
    std::copy_n(answer.begin() + static_cast<std::ptrdiff_t>(at), id.size(), id.begin());
  if (id == connection_id{})
    throw error(errc::protocol_error, "the peer's answer lacks the connection id that further rails need");
  return id;
}

void refuse_shared_receives(const set_up_options& how) {
  if (how.receives == nullptr) return;
  throw error(errc::not_supported, "receives cannot be shared by a connection of several rails, or one that resumes");
}

// The bytes that a connection has for copies of messages that the peer has not confirmed yet.
constexpr std::size_t kept_bytes = std::size_t{64} << 10;

// The options for later links: with room for control messages, without pointers to the caller's memory.
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

task<std::shared_ptr<own_receives>> find_control_receives(const set_up_options& how) {
  auto memory = co_await find_receive_memory(*how.pool, control_receives, how.receive_bytes, how.deadline);
  co_return make_control_receives(std::move(memory), how.receive_bytes, how.max_receives);
}

// The receives that the first rail posts: the connection's, then its own.
struct first_receives final : own_receives {
  first_receives(std::shared_ptr<own_receives> connections, std::shared_ptr<own_receives> rails)
      : parts{std::move(connections), std::move(rails)} {
    for (const auto& part : parts) {
      for (const receive_slot& each : part->slots) slots.emplace_back().work = each.work;
    }
  }

  const std::array<std::shared_ptr<own_receives>, 2> parts;  // the owners of the memory
};

// Makes everything that a connection of several rails needs, except the first link.
task<rails_set_up> prepare(const fabrics& ways, std::vector<rail_route> routes, const set_up_options& how,
                           const slicing& sliced) {
  rails_set_up made;
  made.sliced = sliced;
  made.joins.routes = std::move(routes);
  for (const auto& each : ways) made.joins.ways.push_back(each.get());
  made.joins.how = for_later(how);
  made.receives = co_await find_control_receives(how);
  made.control_memory = co_await find_one(*how.pool, rail::control_memory_bytes(), how.deadline);
  made.kept_memory = co_await find_one(*how.pool, kept_bytes, how.deadline);
  co_return made;
}

class request final : public link_request {
 public:
  request(std::unique_ptr<link_request> inner, std::shared_ptr<const std::vector<std::string>> addresses,
          const fabrics& ways, std::shared_ptr<registry> all, const slicing& sliced) noexcept
      : inner_(std::move(inner)),
        addresses_(std::move(addresses)),
        ways_(ways),
        registry_(std::move(all)),
        sliced_(sliced) {
    origin = inner_->origin;
    if (asks_for_rails(private_data())) candidate_.emplace(*registry_);
  }

  [[nodiscard]] std::string_view peer() const noexcept override { return inner_->peer(); }
  [[nodiscard]] std::span<const std::byte> private_data() const noexcept override { return inner_->private_data(); }

  [[nodiscard]] task<std::unique_ptr<link>> accept(const set_up_options& options) override {
    const bool railed = asks_for_rails(options.private_data) && asks_for_rails(private_data());
    if (!railed && ways_.size() == 1) co_return co_await inner_->accept(options);
    refuse_shared_receives(options);
    std::vector<rail_route> routes;
    for (std::size_t i = 0; i < max_rails; ++i) {
      routes.push_back({.way = ways_[(inner_->fabric + i) % ways_.size()].get()});
    }
    rails_set_up made = co_await prepare(ways_, std::move(routes), options, sliced_);
    std::vector<std::byte> answer = greeting_over(*ways_[inner_->fabric], options.private_data);
    if (railed) {
      made.joins.own_addresses = *addresses_;
      weft::detail::draw(executor_core::current()->calls(), made.joins.id);
      made.registered.emplace(registry_, made.joins.id);
      answer.insert(answer.end(), made.joins.id.begin(), made.joins.id.end());
    }
    set_up_options wider = with_room(options);
    wider.private_data = answer;
    if (railed && options.first_receives != nullptr) {  // the peer sends `hello` at once
      wider.first_receives = std::make_shared<first_receives>(options.first_receives, made.receives);
    }
    std::unique_ptr<link> first = co_await inner_->accept(wider);
    co_return std::make_unique<rails_link>(registry_, std::move(first), std::move(made));
  }
  [[nodiscard]] task<> reject(std::span<const std::byte> private_data) override { return inner_->reject(private_data); }

 private:
  std::unique_ptr<link_request> inner_;
  const std::shared_ptr<const std::vector<std::string>> addresses_;
  const fabrics& ways_;
  const std::shared_ptr<registry> registry_;
  const slicing sliced_;
  std::optional<registry::candidate> candidate_;
};

// Hands joining rails to their connections, whether or not anybody waits for peers. Joins for an unknown connection are
// rejected; joins for one that is still being set up are dropped, and the peer asks again.
class joining_rails final : public request_filter {
 public:
  joining_rails(std::shared_ptr<registry> all, std::size_t way) noexcept : registry_(std::move(all)), way_(way) {}

  [[nodiscard]] bool takes(std::unique_ptr<link_request>& request) noexcept override try {
    const auto said = join::unpack(request->private_data());
    if (!said) return false;
    request->fabric = way_;
    if (registry::deliver(registry_, *said, request) == registry::delivery::unknown) {
      run_in_background(*executor_core::current(), refuse(std::move(request)), "refuse a rail");
    }
    request.reset();
    return true;
  } catch (const std::bad_alloc&) {  // the peer asks again
    request.reset();
    return true;
  }
  [[nodiscard]] bool expects_peers() const noexcept override { return registry_->expects_rails(); }

 private:
  static task<> refuse(std::unique_ptr<link_request> asked) {
    try {
      co_await asked->reject(std::as_bytes(std::span(no_such_connection)));
    } catch (const std::exception&) {  // then the peer only sees the connection end
    }
  }

  const std::shared_ptr<registry> registry_;
  const std::size_t way_;
};

// Yields all requests except joining rails, which the filter takes.
class listener final : public link_listener {
 public:
  listener(std::unique_ptr<link_listener> inner, std::vector<std::string> addresses, const fabrics& ways,
           std::shared_ptr<registry> all, const slicing& sliced)
      : inner_(std::move(inner)),
        address_(fmt::format("{}", fmt::join(addresses, "+"))),
        addresses_(std::make_shared<const std::vector<std::string>>(std::move(addresses))),
        ways_(ways),
        registry_(std::move(all)),
        sliced_(sliced) {}

  [[nodiscard]] std::string_view address() const noexcept override { return address_; }
  [[nodiscard]] task<std::unique_ptr<link_request>> next() override {
    return next_of(inner_, addresses_, ways_, registry_, sliced_);
  }
  void close() noexcept override { inner_->close(); }

 private:
  // Static, because the listener may be destroyed before the task begins.
  static task<std::unique_ptr<link_request>> next_of(std::shared_ptr<link_listener> inner,
                                                     std::shared_ptr<const std::vector<std::string>> addresses,
                                                     const fabrics& ways, std::shared_ptr<registry> all,
                                                     slicing sliced) {
    std::unique_ptr<link_request> asked = co_await inner->next();
    if (asked == nullptr) co_return nullptr;
    co_return std::make_unique<request>(std::move(asked), std::move(addresses), ways, all, sliced);
  }

  const std::shared_ptr<link_listener> inner_;
  const std::string address_;
  const std::shared_ptr<const std::vector<std::string>> addresses_;
  const fabrics& ways_;
  const std::shared_ptr<registry> registry_;
  const slicing sliced_;
};

class rails_transport final : public transport {
 public:
  rails_transport(fabrics ways, const slicing& sliced)
      : ways_(std::move(ways)), sliced_(sliced), registry_(std::make_shared<registry>(names_of(ways_))) {
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
  void add_rails(std::vector<fabric_rail_statistics>& all) const override {
    if (ways_.size() > 1 || registry_->rails.has_had_any()) registry_->rails.add_to(all);
  }
  [[nodiscard]] native_features features() const noexcept override {
    native_features common = ways_.front()->features();
    for (const auto& each : ways_) common = common & each->features();
    return common;
  }
  // A single fabric has one link, unless another link may follow it.
  [[nodiscard]] bool has_rails(std::chrono::milliseconds resume_within) const noexcept override {
    return ways_.size() > 1 || resume_within.count() > 0;
  }
  [[nodiscard]] landing_place landing() const noexcept override { return ways_.front()->landing(); }
  [[nodiscard]] bool listens_first() const noexcept override {
    return std::any_of(ways_.begin(), ways_.end(), [](const auto& each) { return each->listens_first(); });
  }
  [[nodiscard]] bool understands(std::string_view address) const noexcept override {
    return ways_.front()->understands(ways_.size() == 1 ? address : address.substr(0, address.find('+')));
  }
  [[nodiscard]] task<std::unique_ptr<receive_queue>> share_receives(std::uint16_t depth) override {
    return ways_.size() == 1 ? ways_.front()->share_receives(depth) : transport::share_receives(depth);
  }

  [[nodiscard]] task<new_link> connect(std::string_view address, const set_up_options& options) override {
    const bool asked = asks_for_rails(options.private_data);
    if (!asked && ways_.size() == 1) co_return co_await ways_.front()->connect(address, options);
    refuse_shared_receives(options);
    const std::vector<std::string> addresses = split(address);
    const std::size_t count = std::max(addresses.size(), ways_.size());
    if (count > max_rails) {
      throw error(errc::invalid_argument, fmt::format("{} rails: a connection has at most {}", count, max_rails));
    }
    set_up_options wider = with_room(options);
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < count; ++i) {
      if (!is_tried_before(addresses, i)) all.push_back(i);
    }
    std::vector<rail_route> routes;  // of the attempt in progress
    std::vector<std::byte> words;
    const auto named = [&](std::size_t first) { return fmt::format("over {}", route(addresses, first).way->name()); };
    const auto attempt = [&](std::size_t first, std::size_t left, const failed_attempts&) {
      wider.deadline = share_of_time(options.deadline, left);
      routes.clear();
      for (std::size_t j = 0; j < count; ++j) routes.push_back(route(addresses, (first + j) % count));
      words = greeting_over(*routes[0].way, options.private_data);
      wider.private_data = words;
      return routes[0].way->connect(routes[0].address, wider);
    };
    new_link made = co_await try_in_order(all, named, attempt, may_reach_otherwise);
    const bool railed = asked && asks_for_rails(made.peer_private_data);
    if (!railed && ways_.size() == 1) co_return made;
    rails_set_up rest = co_await prepare(ways_, std::move(routes), options, sliced_);
    rest.joins.connects = true;
    rest.joins.learns_addresses = addresses.size() == 1;
    if (ways_.size() == 1) rest.joins.source = options.source;
    if (railed) rest.joins.id = id_in(made.peer_private_data);
    made.link = std::make_unique<rails_link>(registry_, std::move(made.link), std::move(rest));
    co_return made;
  }

  [[nodiscard]] task<std::unique_ptr<link_listener>> listen(std::string_view address,
                                                            const listen_options& options) override {
    std::vector<std::string> addresses = split(address);
    const std::size_t given = addresses.size();
    std::vector<fabric_listener> parts;
    for (std::size_t i = 0; i < std::max(given, ways_.size()); ++i) {
      // Fabrics of one name, such as two of iwarp, need only one listener for each address.
      if (i >= given && is_of_same_kind(i)) continue;
      try {
        listen_options with_filter = options;
        with_filter.filter = &joining_[i % ways_.size()];
        auto made = co_await ways_[i % ways_.size()]->listen(addresses[i % given], with_filter);
        if (i < given) addresses[i] = made->address();
        parts.emplace_back(i % ways_.size(), std::move(made));
      } catch (const error& why) {
        // A fabric that has no address of its own, and cannot listen at another fabric's, is left out.
        if (why.code() == errc::canceled || i < given) throw;
      }
    }
    co_return std::make_unique<listener>(join_listeners(std::move(parts), failed_listener::is_left_out),
                                         std::move(addresses), ways_, registry_, sliced_);
  }

 private:
  [[nodiscard]] static std::vector<std::string_view> names_of(const fabrics& ways) {
    std::vector<std::string_view> names;
    for (const auto& each : ways) names.push_back(each->name());
    return names;
  }
  // Whether an earlier rail uses the same fabric and address.
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

  const fabrics ways_;
  const slicing sliced_;
  std::string name_;
  const std::shared_ptr<registry> registry_;
  std::deque<joining_rails> joining_;
};

}  // namespace

std::unique_ptr<transport> open_transport(std::vector<std::unique_ptr<transport>> ways, const slicing& sliced) {
  if (ways.empty() || ways.size() > max_rails) {
    throw error(errc::invalid_argument, fmt::format("a device has 1 to {} rails, not {}", max_rails, ways.size()));
  }
  return std::make_unique<rails_transport>(std::move(ways), sliced);
}

}  // namespace weft::net::rails
