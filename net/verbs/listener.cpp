// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/checked.hpp>
#include <weft/net/link/listener_handle.hpp>
#include <weft/net/link/live_statistics.hpp>
#include <weft/net/link/socket_listener.hpp>
#include <weft/net/verbs/listener.hpp>
#include <weft/net/verbs/set_up.hpp>
#include <weft/net/verbs/words.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <string>

namespace weft::net::verbs {
namespace {

constexpr int backlog = 1024;

// A connection request that has arrived. Events of its id on the listener's channel are dropped, so if the peer gives
// up, that shows only when accept() fails.
class rdma_request final : public net::link_request {
 public:
  rdma_request(std::shared_ptr<device> home, std::shared_ptr<domain> memory, cm_id id, const cm_event& asked,
               std::optional<std::uint8_t> traffic_class)
      : device_(std::move(home)),
        domain_(std::move(memory)),
        id_(std::move(id)),
        asked_(asked),
        traffic_class_(traffic_class),
        peer_(peer_of(*id_.get())) {
    origin = network_of(address_of_peer(*id_.get()));
  }
  // The kernel rejects the peer when an unanswered id is destroyed.
  ~rdma_request() override { cm_id::destroy_on_worker(std::move(id_)); }

  [[nodiscard]] std::string_view peer() const noexcept override { return peer_; }
  [[nodiscard]] std::span<const std::byte> private_data() const noexcept override { return asked_.said(); }

  task<std::unique_ptr<net::link>> accept(const set_up_options& options) override {
    return verbs::accept(device_, domain_, std::move(id_), asked_, options, traffic_class_);
  }

  task<> reject(std::span<const std::byte> data) override {
    const int result = device_->calls().reject(id_.get(), data.data(), static_cast<std::uint8_t>(data.size()));
    cm_id::destroy_on_worker(std::move(id_));
    checked(result, "reject the RDMA connection");
    co_return;
  }

 private:
  std::shared_ptr<device> device_;
  std::shared_ptr<domain> domain_;
  cm_id id_;
  cm_event asked_;
  std::optional<std::uint8_t> traffic_class_;  // the listener's
  std::string peer_;
};

// Shared by its handle and the tasks that wait for the next request.
class listener final : private cm_handler,
                       private async_handler,
                       private weft::detail::remote_work,
                       public std::enable_shared_from_this<listener> {
 public:
  listener(std::shared_ptr<device> home, std::shared_ptr<domain> memory, const listen_options& options);
  ~listener() {
    if (id_) id_.set_handler(nullptr);
    cm_id::destroy_on_worker(std::move(id_));
  }

  void listen_on(socket_address address);
  /// Has a worker destroy the id, because that may block. Called after listen_on() has failed.
  task<> give_address_back();

  [[nodiscard]] std::string_view name() const noexcept { return name_; }
  static task<std::unique_ptr<net::link_request>> next(std::shared_ptr<listener> self);
  void close() noexcept;

 private:
  void on_cm_event(const cm_event& what) noexcept override;
  void on_async_event(ibv_event_type what, int port) noexcept override;
  void run_on_executor() noexcept override { std::exchange(closing_, nullptr)->close(); }
  void fail(const error& why) noexcept;
  void take(cm_id id, const cm_event& what) noexcept;

  executor_core& executor_;
  std::shared_ptr<device> device_;
  std::shared_ptr<domain> domain_;
  listen_options options_;
  cm_id id_;
  std::shared_ptr<channel_handle> channel_;
  std::optional<executor_state::user> watching_;
  std::string name_;
  std::deque<std::unique_ptr<net::link_request>> requests_;
  event changed_;
  std::optional<error> failure_;
  bool closed_ = false;
  std::atomic_flag sent_home_;         // another thread's close() has been submitted to the executor
  std::shared_ptr<listener> closing_;  // keeps this object until that close() has run
};

listener::listener(std::shared_ptr<device> home, std::shared_ptr<domain> memory, const listen_options& options)
    : executor_(*executor_core::current()), device_(std::move(home)), domain_(std::move(memory)), options_(options) {
  executor_state& shared = executor_state::of(device_);
  channel_ = shared.channel().handle();
  cm_handler* const self = this;
  id_ = cm_id(channel_, self);
  watching_.emplace(shared, static_cast<async_handler&>(*this));
}

task<> listener::give_address_back() {
  const auto destroy = [this] { const cm_id gone = std::move(id_); };
  co_await weft::detail::offload_for_resources(destroy);
}

void listener::listen_on(socket_address address) {
  rdma_calls& library = device_->calls();
  int yes = 1;
  checked(library.set_option(id_.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes),
          "allow the address to be reused");
  if (address.family() == AF_INET6) {
    // "[::]" accepts IPv4 as well, whatever net.ipv6.bindv6only says.
    int no = 0;
    checked(library.set_option(id_.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &no, sizeof no), "listen for IPv4");
  }
  set_traffic_class(library, id_, options_.traffic_class);
  checked(library.bind_addr(id_.get(), const_cast<sockaddr*>(address.data())), "bind the address");
  if (id_->verbs != nullptr && !device_->is_that_of(*id_.get())) {
    throw error(errc::wrong_device, std::string("the address belongs to ") + id_->verbs->device->name);
  }
  checked(library.listen(id_.get(), backlog), "listen");
  name_ = socket_address(rdma_get_local_addr(id_.get()), address.size()).to_string();
}

void listener::on_cm_event(const cm_event& what) noexcept {
  if (what.type == RDMA_CM_EVENT_CONNECT_REQUEST) return take(cm_id(channel_, what.id), what);
  if (what.type == RDMA_CM_EVENT_DEVICE_REMOVAL) fail(device_removed(device_->name()));
}

void listener::on_async_event(ibv_event_type what, int) noexcept {
  if (const auto why = failure_of(what, device_->name())) fail(*why);
}

// Destroys the id at once, because the kernel does not remove a device before all its ids are destroyed.
void listener::fail(const error& why) noexcept {
  if (failure_ || closed_) return;
  set_up_statistics::count(options_.counts->accept_errors);
  failure_ = why;
  id_.set_handler(nullptr);
  requests_.clear();
  cm_id::destroy_on_worker(std::move(id_));
  changed_.set();
}

// Takes a connection request, or rejects it. A listener on a wildcard address also gets requests that arrive at other
// devices, which it rejects.
void listener::take(cm_id id, const cm_event& what) noexcept try {
  if (closed_ || !device_->is_that_of(*id.get())) {
    if (!closed_) set_up_statistics::count(options_.counts->requests_failed);
    return cm_id::destroy_on_worker(std::move(id));
  }
  std::unique_ptr<net::link_request> request =
      std::make_unique<rdma_request>(device_, domain_, std::move(id), what, options_.traffic_class);
  if (options_.filter != nullptr && options_.filter->takes(request)) return;
  if (requests_.size() >= options_.max_half_open) {  // the request is destroyed, which rejects the peer
    return set_up_statistics::count(options_.counts->requests_failed);
  }
  requests_.push_back(std::move(request));
  changed_.set();
} catch (const std::bad_alloc&) {
  // The id is destroyed here, which rejects the peer.
  set_up_statistics::count(options_.counts->accept_errors);
}

task<std::unique_ptr<net::link_request>> listener::next(std::shared_ptr<listener> self) {
  if (!self->executor_.on_own_thread())
    throw error(errc::wrong_thread, "call a listener on the executor on which it was made");
  while (!self->closed_) {
    if (!self->requests_.empty()) {
      auto request = std::move(self->requests_.front());
      self->requests_.pop_front();
      co_return request;
    }
    if (self->failure_) throw *self->failure_;
    self->changed_.reset();
    co_await self->changed_.wait();
  }
  co_return nullptr;
}

void listener::close() noexcept {
  if (!executor_.belongs_to_this_thread()) {
    if (sent_home_.test_and_set()) return;
    closing_ = shared_from_this();
    return executor_.submit(*this);
  }
  if (std::exchange(closed_, true)) return;
  if (id_) id_.set_handler(nullptr);
  requests_.clear();
  cm_id::destroy_on_worker(std::move(id_));  // from now on peers are rejected
  watching_.reset();
  changed_.set();
}

}  // namespace

task<std::unique_ptr<link_listener>> listen(std::shared_ptr<device> home, std::shared_ptr<domain> memory,
                                            socket_address address, listen_options options) {
  const auto made = std::make_shared<listener>(std::move(home), std::move(memory), options);
  std::optional<error> failure;
  try {
    made->listen_on(address);
  } catch (const error& why) {
    failure = why;
  }
  if (!failure) co_return std::make_unique<listener_handle<listener>>(made);
  co_await made->give_address_back();
  throw *failure;
}

}  // namespace weft::net::verbs
