// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/device.hpp>
#include <weft/runtime/task.hpp>

#include <cstdint>
#include <optional>
#include <string>

#include "prefill.hpp"
#include "protocol.hpp"
#include "session.hpp"

namespace kvcache {

/// What a receiver has made of a sequence.
struct outcome {
  enum class kind : std::uint8_t {
    accepted,
    evicted,  ///< it has taken its pages back
    refused,  ///< it has no room, or the contents were wrong
  } what = kind::accepted;
  std::string why{};
};

/// A receiver, as a pusher sees it, over one connection after the other.
class destination {
 public:
  destination(weft::net::device& device, std::string address, weft::duration patience);

  /// Pushes the sequence that is being computed, layer after layer, as each is ready. Connects if there is no
  /// connection: one that has ended because the pages were taken back is no error of the next sequence. Throws
  /// weft::error if the receiver is lost, or does not keep to the protocol.
  [[nodiscard]] weft::task<outcome> push(prefill& from);
  /// Ends the connection in order, if there is one.
  [[nodiscard]] weft::task<> close();

  [[nodiscard]] const std::string& address() const noexcept { return address_; }

 private:
  [[nodiscard]] weft::task<> connect();
  [[nodiscard]] weft::task<message> ask(const prefill& from);
  [[nodiscard]] weft::task<message> ask_anew(const prefill& from);
  [[nodiscard]] weft::task<> push_layers(prefill& from, const lent_message& lent);
  [[nodiscard]] weft::task<> push_or_abort(prefill& from, const lent_message& lent);
  [[nodiscard]] weft::task<message> hear_end(const lent_message& lent);
  [[nodiscard]] weft::task<outcome> push_to(prefill& from, const lent_message& lent);
  [[nodiscard]] weft::task<> drop(std::uint64_t sequence);

  weft::net::device& device_;
  std::string address_;
  weft::duration patience_;
  std::optional<session> link_;
  std::optional<message> end_;  // what the receiver has said at the end of the sequence
  std::uint32_t written_ = 0;   // layers
  bool has_dropped_ = false;    // the last sequence, over this connection
};

}  // namespace kvcache
