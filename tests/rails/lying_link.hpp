// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/rails/control.hpp>

#include <random>

#include "kit/forwarding_link.hpp"

namespace weft::test {

/// What a peer lies about, out of a seed.
struct liar {
  explicit liar(unsigned seed) : random(seed) {}

  std::minstd_rand random;
  unsigned tells_one_in = 4;    ///< calls of link::ring() that bring a lie; 0: none
  unsigned changes_one_in = 8;  ///< of its own control messages; 0: none
  /// What it says on and on, confirming nothing that comes; none: all kinds of things.
  std::optional<net::rails::control_kind> repeats{};
  std::vector<std::uint64_t> numbers{0, 1, UINT32_MAX, UINT64_MAX};  ///< handles, keys and addresses of both ends
  std::size_t told = 0;                                              ///< lies so far

  [[nodiscard]] bool happens(unsigned one_in) { return one_in != 0 && random() % one_in == 0; }
  [[nodiscard]] std::uint64_t number() {
    return random() % 4 == 0 ? std::uint64_t{random()} << 33 | random() : numbers[random() % numbers.size()];
  }
  void remember(const net::rails::control& said) {
    if (said.kind != net::rails::control_kind::exposed || numbers.size() > 64) return;
    numbers.insert(numbers.end(), {said.number, said.key, said.address});
  }
  [[nodiscard]] net::rails::control lie() {
    using enum net::rails::control_kind;
    static constexpr std::array kinds{hello,   welcome, credits, fence,     fenced,  confirm, confirmed,
                                      exposed, finish,  revoke,  withdrawn, refused, names,   listens};
    net::rails::control made{.kind = repeats.value_or(kinds[random() % kinds.size()]),
                             .rail = static_cast<std::uint8_t>(random() % net::rails::max_rails)};
    made.carried_messages = made.at_deadline = random() % 2 == 0;
    made.epoch = static_cast<std::uint32_t>(random() % 8 == 0 ? random() : random() % 4);
    made.number = number();
    made.key = number();
    made.address = number();
    return made;
  }
};

/// A link whose end says more about its rails than the program above it does, and other things.
class lying_link final : public overhearing_link {
 public:
  lying_link(std::unique_ptr<net::link> truthful, liar& how) : overhearing_link(std::move(truthful)), how_(how) {}

  void start(net::link_events& events, const net::link_parameters& parameters) override {
    const std::size_t stride = (inner().corner_bytes() / net::corner_alignment + 1) * net::corner_alignment;
    corners_ = std::vector<std::uint64_t>(stride * lies_.size() / sizeof(std::uint64_t));
    net::link_parameters wider = parameters;
    wider.send_depth = static_cast<std::uint16_t>(parameters.send_depth + lies_.size());
    overhearing_link::start(events, wider);
    for (std::size_t i = 0; i < lies_.size(); ++i) {
      lies_[i].work.slot = static_cast<std::uint16_t>(parameters.send_depth + i);
      lies_[i].work.corner = reinterpret_cast<std::byte*>(corners_.data()) + i * stride;
      lies_[i].is_out = !inner().furnish(lies_[i].work);
    }
  }
  void post(net::work_request& work) noexcept override {
    if (is_control(work.own)) says(work);
    inner().post(work);
  }
  [[nodiscard]] bool takes_runs() noexcept override { return false; }
  void ring() noexcept override {
    if (has_spoken_ && (how_.repeats || how_.happens(how_.tells_one_in))) tell();
    inner().ring();
  }

 private:
  struct one_lie {
    net::work_request work{};
    net::rails::control::storage words{};
    bool is_out = false;
  };

  static constexpr std::size_t trailer_bytes = net::rails::control::trailer_bytes;
  [[nodiscard]] static bool is_control(std::span<const std::byte> message) noexcept {
    return net::rails::control::is_one(message);
  }
  [[nodiscard]] static std::byte* received_of(std::span<std::byte> message) noexcept {
    return message.data() + message.size() - trailer_bytes / 2;
  }
  template <std::size_t bytes>
  static void put(std::byte* where, std::uint64_t value) noexcept {
    for (std::size_t i = 0; i < bytes; ++i) where[i] = static_cast<std::byte>(value >> (8 * i));
  }

  // What the program above says. Its trailer is apart from the rest.
  void says(net::work_request& work) noexcept {
    has_spoken_ = true;
    std::byte* const received = received_of(work.own);
    if (how_.repeats) put<4>(received, 0);
    std::copy_n(received, last_received_.size(), last_received_.begin());
    const auto kind = static_cast<net::rails::control_kind>(work.own[0]);
    if (kind != net::rails::control_kind::credits) ++spoken_;
    if (work.segments.empty() || !how_.happens(how_.changes_one_in)) return;
    const std::span<std::byte> body = work.segments[0].bytes();
    const std::size_t at = how_.random() % body.size();
    at % 8 == 0 && at + 8 <= body.size() ? put<8>(&body[at], how_.number()) : put<1>(&body[at], how_.random() % 4);
    ++how_.told;
  }

  void tell() noexcept {
    for (one_lie& each : lies_) {
      if (!each.is_out) return tell(each);
    }
  }
  void tell(one_lie& with) noexcept {
    with.is_out = true;
    const auto packed = how_.lie().pack(with.words);
    with.work.kind = net::work_kind::send;
    with.work.own = std::span(with.words).first(packed.size());
    std::ranges::copy(last_received_, received_of(with.work.own));
    ++how_.told;
    inner().post(with.work);
  }

  void completed(net::work_request& work, net::work_status status) noexcept override {
    const auto lie = std::ranges::find_if(lies_, [&](const one_lie& each) { return &each.work == &work; });
    if (lie == lies_.end()) return events().completed(work, status);
    lie->is_out = false;
    if (!how_.repeats || status != net::work_status::done) return;
    tell(*lie);
    inner().ring();
  }
  // It has told more than the program above knows, and is told so.
  void received(net::receive_work& work, const net::arrival& what) noexcept override {
    const std::span<std::byte> message = work.memory.bytes().first(what.immediate ? 0 : what.bytes);
    if (is_control(message)) {
      put<4>(received_of(message), spoken_);
      if (const auto said = net::rails::control::unpack(message)) how_.remember(*said);
    }
    events().received(work, what);
  }

  liar& how_;
  std::array<one_lie, 4> lies_;
  std::vector<std::uint64_t> corners_;
  bool has_spoken_ = false;   // about rails, so that the peer knows that there are some
  std::uint32_t spoken_ = 0;  // control messages of the program above that count
  std::array<std::byte, 4> last_received_{};
};

}  // namespace weft::test
