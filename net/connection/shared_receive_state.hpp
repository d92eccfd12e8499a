// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/net/connection/receive_refill.hpp>
#include <weft/net/link/receive_slot.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/options.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

namespace weft::net {

class device_state;

/// One set of shared receives: a receive queue of a transport, and the memory of its receives. The shared_receives
/// handle and the connections that use the set own it together.
class shared_receive_state final : public std::enable_shared_from_this<shared_receive_state>,
                                   private receive_refill::client {
 public:
  /// A connection that uses the receives.
  class user {
   protected:
    ~user() = default;

   private:
    friend class shared_receive_state;
    /// Called when the pool cannot provide more memory for the receives.
    virtual void receives_failed(const error& why) noexcept = 0;
  };

  /// Posts one receive for each buffer in `memory`.
  shared_receive_state(std::shared_ptr<device_state> device, std::unique_ptr<receive_queue> queue,
                       const shared_receive_options& options, std::vector<mr::buffer> memory);

  [[nodiscard]] const shared_receive_options& options() const noexcept { return options_; }
  [[nodiscard]] const executor_core& home() const noexcept { return home_; }
  [[nodiscard]] const device_state& device() const noexcept { return *device_; }
  [[nodiscard]] receive_queue& queue() noexcept { return *queue_; }
  [[nodiscard]] receive_slot& slot(const receive_work& work) noexcept { return slots_[work.slot]; }

  /// Adds a connection, which uses the receives until leave().
  void join(user& one);
  void leave(user& one) noexcept;
  /// Lets the refill stop as soon as no connection uses the receives. Called once no connection can join them.
  void close() noexcept;

  /// Posts a slot that has its memory.
  void post(receive_slot& slot) noexcept;
  /// Finds memory for a slot whose memory left with its message, then posts it.
  void refill(receive_slot& slot) noexcept {
    refill_.try_fill(slot) ? post(slot) : refill_.add(slot, shared_from_this());
  }

 private:
  void refilled(receive_slot& slot, mr::buffer memory) noexcept override;
  void refill_failed(const error& why) noexcept override;
  void stop_if_unused() noexcept;

  executor_core& home_;
  std::shared_ptr<device_state> device_;
  shared_receive_options options_;
  std::vector<receive_slot> slots_;
  std::unique_ptr<receive_queue> queue_;  // destroyed before the memory that it uses
  receive_refill refill_;
  std::vector<user*> users_;
  bool closed_ = false;
  std::optional<executor_core::dependent> open_{std::in_place, home_};  // set until close()
};

/// The receives behind shared_receives: one set for each domain of a device. Fabrics with the same domain share a set.
/// The program's handle and the set-ups of connections that will use the receives own the group together, and the last
/// of them closes the sets.
class shared_receive_group final : private weft::detail::remote_work {
 public:
  shared_receive_group() = default;
  shared_receive_group(const shared_receive_group&) = delete;
  shared_receive_group& operator=(const shared_receive_group&) = delete;
  ~shared_receive_group();

  static task<std::shared_ptr<shared_receive_group>> make(std::shared_ptr<device_state> device,
                                                          shared_receive_options options);

  /// The receives for connections over this fabric of the device.
  [[nodiscard]] const std::shared_ptr<shared_receive_state>& on(std::size_t fabric) const noexcept {
    return of_fabrics_[fabric];
  }
  /// Called when the program's handle is destroyed, on any thread. Takes the handle's ownership to the sets' executor,
  /// because whoever lets go last releases the sets, which only that executor's thread may do.
  static void let_go(std::shared_ptr<shared_receive_group> group) noexcept;

 private:
  void run_on_executor() noexcept override { let_go_of_.reset(); }

  executor_core& home_ = *executor_core::current();
  std::vector<std::shared_ptr<shared_receive_state>> of_fabrics_;
  std::shared_ptr<shared_receive_group> let_go_of_;  // this object, while let_go() is on its way to home_
};

/// Finds the shared receives that `options` name, for connect() and accept(); null if they name none. Throws
/// errc::invalid_argument, errc::wrong_thread, errc::wrong_device, and errc::not_supported for options that cannot be
/// combined with shared receives.
[[nodiscard]] std::shared_ptr<shared_receive_group> find_shared_receives(const connection_options& options,
                                                                         const device_state& device);

}  // namespace weft::net
