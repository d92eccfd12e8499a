// SPDX-License-Identifier: Apache-2.0
#include <weft/net/failed_addresses.hpp>
#include <weft/net/verbs/domain.hpp>
#include <weft/net/verbs/listener.hpp>
#include <weft/net/verbs/set_up.hpp>
#include <weft/net/verbs/transport.hpp>

namespace weft::net::verbs {
namespace {

class transport final : public net::transport {
 public:
  transport(std::string_view device_name, rdma_calls& libraries)
      : device_(std::make_shared<device>(libraries, device_name)),
        domain_(std::make_shared<verbs::domain>(device_)),
        base_(domain_) {}

  [[nodiscard]] std::string_view name() const noexcept override { return domain_->name(); }
  [[nodiscard]] const std::shared_ptr<mr::domain>& shared_domain() const noexcept override { return base_; }
  [[nodiscard]] native_features features() const noexcept override {
    // A write with immediate data came to iWARP with RFC 7306, which RNICs and the kernel's siw do not have.
    return {.atomics = device_->has_atomics(), .immediate = !device_->is_iwarp()};
  }
  [[nodiscard]] bool listens_first() const noexcept override { return device_->is_iwarp(); }
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
};

task<new_link> transport::connect(std::string_view address, const set_up_options& options) {
  const std::vector<socket_address> sources = co_await look_up_source(options.source, options.deadline);
  const std::vector<socket_address> addresses =
      co_await look_up(address, false, options.deadline, "look up the address");
  failed_addresses failures(addresses.size());
  std::size_t left = addresses.size();
  for (const socket_address& candidate : addresses) {
    set_up_options share = options;
    share.deadline = share_of_time(options.deadline, left--);
    try {
      co_return co_await verbs::connect(device_, domain_, candidate, sources, share);
    } catch (const error& why) {
      failures.add(candidate, why);
      if (!worth_another_try(why, options.deadline)) break;
    }
  }
  throw failures.all();
}

task<std::unique_ptr<link_listener>> transport::listen(std::string_view address, const listen_options& options) {
  const std::vector<socket_address> addresses =
      co_await look_up(address, true, time_point::max(), "look up the address");
  failed_addresses failures(addresses.size());
  for (const socket_address& candidate : addresses) {
    try {
      co_return std::make_unique<listener>(device_, domain_, candidate, options);
    } catch (const error& why) {
      failures.add(candidate, why);
    }
  }
  throw failures.all();
}

}  // namespace

bool has_device() { return !device_names(rdma_calls::libraries()).empty(); }

std::unique_ptr<net::transport> open_transport(std::string_view device_name) {
  return open_transport(device_name, rdma_calls::libraries());
}

std::unique_ptr<net::transport> open_transport(std::string_view device_name, rdma_calls& libraries) {
  return std::make_unique<transport>(device_name, libraries);
}

}  // namespace weft::net::verbs
