// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/try_addresses.hpp>
#include <weft/net/verbs/domain.hpp>
#include <weft/net/verbs/listener.hpp>
#include <weft/net/verbs/set_up.hpp>
#include <weft/net/verbs/transport.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace weft::net::verbs {
namespace {

// The memory of a landing_place. Its key works on every connection of the device, and opens nothing else.
class landing_area {
 public:
  explicit landing_area(std::shared_ptr<device> home) noexcept : device_(std::move(home)) {
    constexpr unsigned rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    const int failure =
        device_->calls().reg_mr(device_->pd(), bytes_.data(), bytes_.size(), address(), rights, &region_);
    if (failure < 0) region_ = nullptr;  // then peers can probe with zero-length requests alone
  }
  landing_area(const landing_area&) = delete;
  landing_area& operator=(const landing_area&) = delete;
  ~landing_area() {
    if (region_ == nullptr) return;
    const int result = device_->calls().dereg_mr(region_);
    if (result < 0 && !has_gone(result)) {
      weft::detail::terminate_because("memory could not be deregistered, and peers may still use it");
    }
  }

  [[nodiscard]] landing_place place() const noexcept {
    return region_ != nullptr ? landing_place{.key = region_->rkey, .address = address()} : landing_place();
  }

 private:
  [[nodiscard]] std::uint64_t address() const noexcept { return reinterpret_cast<std::uintptr_t>(bytes_.data()); }

  std::shared_ptr<device> device_;
  ibv_mr* region_ = nullptr;
  alignas(64) std::array<std::byte, 64> bytes_{};
};

class transport final : public net::transport {
 public:
  transport(std::string_view device_name, rdma_calls& libraries, const verbs_options& options)
      : device_(std::make_shared<device>(libraries, device_name, options)),
        domain_(std::make_shared<verbs::domain>(device_)),
        base_(domain_),
        landing_(device_) {}

  [[nodiscard]] std::string_view name() const noexcept override { return domain_->name(); }
  [[nodiscard]] const std::shared_ptr<mr::domain>& shared_domain() const noexcept override { return base_; }
  [[nodiscard]] native_features features() const noexcept override {
    // mutant: promise immediate data
    // mutant: promise atomic operations
    return {.atomics = device_->traits().has_atomics,
            .immediate = device_->traits().has_write_immediate,
            .atomic_write = device_->has_atomic_write()};
  }
  [[nodiscard]] landing_place landing() const noexcept override { return landing_.place(); }
  [[nodiscard]] bool listens_first() const noexcept override { return device_->traits().initiator_speaks_first; }
  [[nodiscard]] task<new_link> connect(std::string_view address, const set_up_options& options) override;
  [[nodiscard]] task<std::unique_ptr<link_listener>> listen(std::string_view address,
                                                            const listen_options& options) override;
  [[nodiscard]] task<std::unique_ptr<net::receive_queue>> share_receives(std::uint16_t depth) override {
    return receive_queue::make(executor_state::of(device_), depth);
  }

 private:
  std::shared_ptr<device> device_;
  std::shared_ptr<verbs::domain> domain_;
  std::shared_ptr<mr::domain> base_;
  landing_area landing_;
};

task<new_link> connect_by(time_point deadline, std::shared_ptr<device> home, std::shared_ptr<domain> memory,
                          const socket_address& target, std::span<const socket_address> sources,
                          const set_up_options& options) {
  set_up_options share = options;
  share.deadline = deadline;
  co_return co_await verbs::connect(std::move(home), std::move(memory), target, sources, share);
}

task<new_link> transport::connect(std::string_view address, const set_up_options& options) {
  const std::vector<socket_address> sources = co_await look_up_source(options.source, options.deadline);
  const auto attempt = [&](const socket_address& candidate, time_point deadline) {
    return connect_by(deadline, device_, domain_, candidate, sources, options);
  };
  co_return co_await try_addresses(address, false, options.deadline, attempt);
}

task<std::unique_ptr<link_listener>> transport::listen(std::string_view address, const listen_options& options) {
  const auto attempt = [&](const socket_address& candidate, time_point) {
    return verbs::listen(device_, domain_, candidate, options);
  };
  co_return co_await try_addresses(address, true, time_point::max(), attempt);
}

}  // namespace

bool has_device() { return has_device(rdma_calls::libraries()); }

std::vector<std::string> ready_devices() { return ready_devices(rdma_calls::libraries()); }

std::vector<std::string> ready_devices(rdma_calls& libraries) {
  std::vector<std::string> ready;
  for (const std::string& name : device_names(libraries)) {
    try {
      if (device(libraries, name).is_active()) ready.push_back(name);
    } catch (const error&) {  // it cannot be opened; opening "verbs" says why if no other is ready
    }
  }
  return ready;
}

bool has_device(rdma_calls& libraries) { return !device_names(libraries).empty(); }

std::unique_ptr<net::transport> open_transport(std::string_view device_name, const verbs_options& options) {
  return open_transport(device_name, rdma_calls::libraries(), options);
}

std::unique_ptr<net::transport> open_transport(std::string_view device_name, rdma_calls& libraries,
                                               const verbs_options& options) {
  return std::make_unique<transport>(device_name, libraries, options);
}

}  // namespace weft::net::verbs
