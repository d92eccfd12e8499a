// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>

#include <new>

#include "kit/standard.hpp"

// A transport that leaves everything to another one, and what it hands out. Tests override what they change.
namespace weft::test {

/// A request that leaves everything to another one.
class forwarding_request : public net::link_request {
 public:
  explicit forwarding_request(std::unique_ptr<net::link_request> inner) noexcept : inner_(std::move(inner)) {}

  [[nodiscard]] std::string_view peer() const noexcept override { return inner_->peer(); }
  [[nodiscard]] std::span<const std::byte> private_data() const noexcept override { return inner_->private_data(); }
  [[nodiscard]] task<std::unique_ptr<net::link>> accept(const net::set_up_options& options) override {
    return inner_->accept(options);
  }
  [[nodiscard]] task<> reject(std::span<const std::byte> data) override { return inner_->reject(data); }

 private:
  const std::unique_ptr<net::link_request> inner_;
};

/// A listener that leaves everything to another one.
class forwarding_listener : public net::link_listener {
 public:
  explicit forwarding_listener(std::unique_ptr<net::link_listener> inner) noexcept : inner_(std::move(inner)) {}

  [[nodiscard]] std::string_view address() const noexcept override { return inner_->address(); }
  [[nodiscard]] task<std::unique_ptr<net::link_request>> next() override { return inner_->next(); }
  void close() noexcept override { inner_->close(); }

 private:
  const std::unique_ptr<net::link_listener> inner_;
};

/// What is put around all that a transport hands out; empty: nothing.
struct transport_wrappers {
  std::function<std::unique_ptr<net::link>(std::unique_ptr<net::link>)> link{};
  std::function<std::unique_ptr<net::link_request>(std::unique_ptr<net::link_request>)> request{};
  std::function<std::unique_ptr<net::link_listener>(std::unique_ptr<net::link_listener>)> listener{};

  template <class What>
  [[nodiscard]] static std::unique_ptr<What> around(
      const std::function<std::unique_ptr<What>(std::unique_ptr<What>)>& with, std::unique_ptr<What> bare) {
    return with && bare != nullptr ? with(std::move(bare)) : std::move(bare);
  }
};

/// A transport that leaves everything to another one.
class forwarding_transport : public net::transport {
 public:
  explicit forwarding_transport(std::unique_ptr<net::transport> inner, transport_wrappers wrappers = {})
      : inner_(std::move(inner)), wrappers_(std::make_shared<const transport_wrappers>(std::move(wrappers))) {}

  [[nodiscard]] std::string_view name() const noexcept override { return inner_->name(); }
  [[nodiscard]] const std::shared_ptr<mr::domain>& shared_domain() const noexcept override {
    return inner_->shared_domain();
  }
  [[nodiscard]] std::vector<std::shared_ptr<mr::domain>> domains() const override { return inner_->domains(); }
  [[nodiscard]] net::native_features features() const noexcept override { return inner_->features(); }
  [[nodiscard]] bool has_rails(std::chrono::milliseconds resume_within) const noexcept override {
    return inner_->has_rails(resume_within);
  }
  [[nodiscard]] net::landing_place landing() const noexcept override { return inner_->landing(); }
  [[nodiscard]] bool listens_first() const noexcept override { return inner_->listens_first(); }
  [[nodiscard]] bool has_own_ports() const noexcept override { return inner_->has_own_ports(); }
  void add_rails(std::vector<net::fabric_rail_statistics>& all) const override { inner_->add_rails(all); }
  [[nodiscard]] bool understands(std::string_view address) const noexcept override {
    return inner_->understands(address);
  }
  [[nodiscard]] task<net::new_link> connect(std::string_view address, const net::set_up_options& options) override {
    net::new_link made = co_await inner_->connect(address, options);
    made.link = around(std::move(made.link));
    co_return made;
  }
  [[nodiscard]] task<std::unique_ptr<net::link_listener>> listen(std::string_view address,
                                                                 const net::listen_options& options) override {
    filters_.push_back(std::make_unique<filter>(wrappers_, options.filter));
    net::listen_options wrapped = options;
    wrapped.filter = filters_.back().get();
    auto bare = co_await inner_->listen(address, wrapped);
    co_return transport_wrappers::around(wrappers_->listener, std::move(bare));
  }
  [[nodiscard]] task<std::unique_ptr<net::receive_queue>> share_receives(std::uint16_t depth) override {
    return inner_->share_receives(depth);
  }

 protected:
  [[nodiscard]] net::transport& inner() const noexcept { return *inner_; }
  [[nodiscard]] std::unique_ptr<net::link> around(std::unique_ptr<net::link> bare) const {
    return transport_wrappers::around(wrappers_->link, std::move(bare));
  }

 private:
  using shared_wrappers = std::shared_ptr<const transport_wrappers>;

  class request final : public forwarding_request {
   public:
    request(shared_wrappers wrappers, std::unique_ptr<net::link_request> inner)
        : forwarding_request(transport_wrappers::around(wrappers->request, std::move(inner))),
          wrappers_(std::move(wrappers)) {}
    [[nodiscard]] task<std::unique_ptr<net::link>> accept(const net::set_up_options& options) override {
      const shared_wrappers wrappers = wrappers_;  // the request may go meanwhile
      auto bare = co_await forwarding_request::accept(options);
      co_return transport_wrappers::around(wrappers->link, std::move(bare));
    }

   private:
    const shared_wrappers wrappers_;
  };
  // All requests come by here, whether somebody waits for them or another filter takes them.
  class filter final : public net::request_filter {
   public:
    filter(shared_wrappers wrappers, net::request_filter* inner) noexcept
        : wrappers_(std::move(wrappers)), inner_(inner) {}
    [[nodiscard]] bool takes(std::unique_ptr<net::link_request>& asked) noexcept override {
      try {
        asked = std::make_unique<request>(wrappers_, std::move(asked));
        return inner_ != nullptr && inner_->takes(asked);
      } catch (const std::bad_alloc&) {  // which is made to happen: the peer asks again
        asked.reset();
        return true;
      }
    }
    [[nodiscard]] bool expects_peers() const noexcept override { return inner_ != nullptr && inner_->expects_peers(); }

   private:
    const shared_wrappers wrappers_;
    net::request_filter* const inner_;
  };

  const std::unique_ptr<net::transport> inner_;
  const shared_wrappers wrappers_;
  std::vector<std::unique_ptr<filter>> filters_;  // they outlive the executors that listen
};

}  // namespace weft::test
