// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/device/owner_keys.hpp>
#include <weft/mr/device_memory.hpp>
#include <weft/runtime/core/attachment.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/poller.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace weft::mr::detail {

class copy_engine;
class copy_lane;

/// Queues work to a stream, and waits until the device has done it. A stop does not interrupt the wait, because the
/// device goes on. If the task was stopped before, nothing is queued, and the operation throws errc::canceled.
class [[nodiscard("co_await it")]] lane_operation : public weft::detail::operation_base {
 public:
  lane_operation(lane_operation&&) noexcept = default;
  lane_operation& operator=(lane_operation&&) = delete;

  /// Throws weft::error.
  void await_resume() const {
    if (failure_ || !begun()) [[unlikely]]
      throw_failure();
  }
  [[nodiscard]] std::string describe() const override;

 protected:
  explicit lane_operation(copy_lane& lane) noexcept : lane_(&lane) {}
  ~lane_operation() { leave(); }
  /// Takes the operation off its lane if it still waits; blocks while the device may use memory for it. Each destructor
  /// calls this first, because a task may be destroyed while it waits.
  void leave() noexcept;

  void begin() override;
  void cancel() noexcept override {}
  /// Queues the work to wait for.
  [[nodiscard]] virtual result<void> queue(copy_stream&) noexcept { return {}; }
  /// Ends the operation's use of memory. Called when the device no longer touches that memory.
  virtual void let_go() noexcept {}

 private:
  friend class copy_lane;
  [[noreturn, gnu::cold]] void throw_failure() const;
  void end() noexcept {
    let_go();
    finish();
  }

  copy_lane* lane_;
  std::uint64_t mark_ = 0;
  bool has_left_ = false;
  lane_operation* next_ = nullptr;  // the operation queued behind this one
  std::optional<error> failure_;
};

/// A copy that is awaited.
class [[nodiscard("co_await it")]] copy_operation final : public lane_operation {
 public:
  copy_operation(copy_lane& lane, std::byte* to, const std::byte* from, std::size_t bytes,
                 owner_key_use use = {}) noexcept
      : lane_operation(lane), to_(to), from_(from), bytes_(bytes), use_(std::move(use)) {}
  copy_operation(copy_operation&&) noexcept = default;
  ~copy_operation() { leave(); }  // before `use_` ends

 private:
  [[nodiscard]] result<void> queue(copy_stream& stream) noexcept override { return stream.copy(to_, from_, bytes_); }
  void let_go() noexcept override { use_.reset(); }

  std::byte* to_;
  const std::byte* from_;
  std::size_t bytes_;
  owner_key_use use_;
};

/// A wait for all that has been queued so far.
class [[nodiscard("co_await it")]] mark_operation final : public lane_operation {
 public:
  explicit mark_operation(copy_lane& lane) noexcept : lane_operation(lane) {}
};

/// A stream, and the operations on it, which complete in order. For the engine's executor alone; the engine must
/// outlive the lane.
///
/// Operations on a program's stream use no memory, so nothing ever waits for them but their tasks.
class copy_lane {
 public:
  enum class owner : std::uint8_t { engine, program };
  copy_lane(copy_engine& engine, std::unique_ptr<copy_stream> stream, owner whose) noexcept;
  copy_lane(const copy_lane&) = delete;
  copy_lane& operator=(const copy_lane&) = delete;
  ~copy_lane();  // no operation may still wait on the lane

 private:
  friend class copy_engine;
  friend class lane_operation;

  void start(lane_operation& item) noexcept;
  /// Resumes completed operations, at most `budget`; returns how many.
  std::size_t poll(std::size_t budget) noexcept;
  [[nodiscard]] bool arm(int event) noexcept;
  void settle() noexcept;
  void forget(lane_operation& item) noexcept;

  copy_engine& engine_;
  std::unique_ptr<copy_stream> stream_;
  lane_operation* first_ = nullptr;
  lane_operation* last_ = nullptr;
  const owner whose_;
  std::uint64_t told_of_ = 0;  // notifications were requested for the work up to this mark
  copy_lane* next_ = nullptr;  // in the engine's list
};

/// The copies of one executor to and from one device: a stream for each direction, polled by the executor.
class copy_engine final : public weft::detail::attachment, private poller {
 public:
  /// The running executor's engine for a device; made at the first call, on a worker. Throws weft::error.
  static task<copy_engine*> of(std::shared_ptr<memory_device> device);
  /// Closes a key: owner_keys::close(). On any thread. Waits for copies of other executors; copies of this thread's
  /// executor, which cannot poll meanwhile, are finished by blocking. Does nothing for the key 0.
  static void close_key(std::uint64_t key) noexcept;

  /// Makes the executor poll the engine as long as this object lives. Must be made and destroyed in coroutines, never
  /// inside a poll.
  class user {
   public:
    explicit user(copy_engine& engine) : engine_(engine) {
      if (engine_.users_ == 0) engine_.home_.add_poller(engine_);
      ++engine_.users_;
    }
    user(const user&) = delete;
    user& operator=(const user&) = delete;
    ~user() {
      if (--engine_.users_ == 0) engine_.home_.remove_poller(engine_);
    }

   private:
    copy_engine& engine_;
  };

  copy_engine(executor_core& home, std::shared_ptr<memory_device> device, std::unique_ptr<copy_stream> in,
              std::unique_ptr<copy_stream> out, descriptor event);

  [[nodiscard]] memory_device& device() const noexcept { return *device_; }
  /// The lane for copies from host memory to the device.
  [[nodiscard]] copy_lane& in() noexcept { return in_; }
  /// The lane for copies from the device to host memory, or within the device.
  [[nodiscard]] copy_lane& out() noexcept { return out_; }

 private:
  friend class copy_lane;
  std::size_t poll(std::size_t budget) noexcept override;
  void arm() noexcept override;
  void disarm() noexcept override;
  static void settle_this_thread(memory_device& device) noexcept;
  [[nodiscard]] int wait_fd() const noexcept override { return event_.fd(); }

  executor_core& home_;
  std::shared_ptr<memory_device> device_;
  std::size_t users_ = 0;
  descriptor event_;  // outlives the streams, whose notifications may come late
  copy_lane* lanes_ = nullptr;
  copy_lane in_;
  copy_lane out_;
};

}  // namespace weft::mr::detail
