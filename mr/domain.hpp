// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/porting/event_queue.hpp>
#include <weft/mr/porting/write_counter.hpp>
#include <weft/mr/region.hpp>
#include <weft/mr/registration.hpp>
#include <weft/runtime/observe/metrics.hpp>
#include <weft/runtime/task.hpp>

#include <atomic>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace weft::mr {

class mapping;

namespace detail {

template <class T>
concept mutable_bytes = requires(T& range) {
  std::as_writable_bytes(std::span(range));
  requires std::is_trivially_copyable_v<typename decltype(std::span(range))::element_type>;
};

template <class T>
struct is_span : std::false_type {};
template <class T, std::size_t Extent>
struct is_span<std::span<T, Extent>> : std::true_type {};

}  // namespace detail

/// Something that owns a contiguous range of bytes: a vector, an array, a mapping with data() and size(), or a
/// unique_ptr, shared_ptr or optional of one. Not a view.
template <class T>
concept memory_owner = std::is_object_v<T> && std::move_constructible<T> && !detail::is_span<T>::value &&
                       (detail::mutable_bytes<T> || requires(T& holder) {
                         requires detail::mutable_bytes<std::remove_reference_t<decltype(*holder)>>;
                       });

namespace detail {

template <memory_owner Owner>
std::span<std::byte> bytes_of(Owner& owner) noexcept {
  if constexpr (mutable_bytes<Owner>) {
    return std::as_writable_bytes(std::span(owner));
  } else {
    return std::as_writable_bytes(std::span(*owner));
  }
}

}  // namespace detail

/// What a domain has registered: the arenas of pools and what caches keep among it.
struct domain_statistics {
  std::uint64_t regions = 0;        ///< that there are now
  std::uint64_t registrations = 0;  ///< that have been made
  std::uint64_t bytes = 0;          ///< of these
  std::uint64_t failures = 0;       ///< registrations that the transport has refused
};

/// A protection domain: where memory is registered so that a transport, and the peers that are given a key, may use it.
///
/// Thread-safe. Held by a shared_ptr: its regions and arenas keep it alive. A transport derives from it and writes
/// do_register() and do_deregister().
class domain : public std::enable_shared_from_this<domain> {
 public:
  domain(const domain&) = delete;
  domain& operator=(const domain&) = delete;
  virtual ~domain() = default;

  /// Whose it is, for errors: "iwarp", "verbs:mlx5_0".
  [[nodiscard]] std::string_view name() const noexcept { return name_; }
  [[nodiscard]] const domain_capabilities& capabilities() const noexcept { return capabilities_; }
  /// Whether registered memory is pinned by the kernel and counts against RLIMIT_MEMLOCK.
  [[nodiscard]] bool pins() const noexcept { return capabilities_.pins; }

  /// What it has done so far. From any thread.
  [[nodiscard]] domain_statistics statistics() const noexcept;

  /// Registers memory that the caller keeps until the region has been released.
  ///
  /// The work is done on workers; bounds on concurrency are the worker pool's. Where the device pins, large memory is
  /// first provided with pages by several of them, huge ones where they fit (MADV_HUGEPAGE of madvise(2)); a file is
  /// not written for a usage that only reads it. A stop withdraws a registration that is queued, and has one that is
  /// under way undone (errc::canceled either way). errc::zero_length, null_address, unknown_usage, misaligned,
  /// duplicate_key, not_supported, out_of_range (an iova that wraps around), invalid_argument (options that contradict
  /// one another), no_memory; system_category for what the transport reports, EFAULT for memory that is not there, or
  /// not with the rights that its usage needs. See ibv_reg_mr(3), rpma_mr_reg(3), fi_mr(3).
  [[nodiscard]] task<region> register_memory(std::span<std::byte> memory, registration_options options);

  /// The same for several ranges, which peers see as one, one behind the other: all of them, or none. At most
  /// capabilities().max_ranges; each needs at least one byte. The address of the first one, or the iova, is that of
  /// all. `ranges` is needed until the call returns. See fi_mr_regv(3).
  [[nodiscard]] task<region> register_memory(std::span<const std::span<std::byte>> ranges,
                                             registration_options options);

  /// The same for memory that the region then owns, and that is destroyed on a worker after deregistration. `owner` is
  /// taken in any case, and destroyed if the registration fails.
  template <memory_owner Owner>
  [[nodiscard]] task<region> register_memory(Owner&& owner, registration_options options)
    requires(!std::is_reference_v<Owner>)
  {
    return register_state(own(std::forward<Owner>(owner)), options);
  }

  /// The same as register_memory(), for many registrations in flight: returns at once, and the end is an event of
  /// `queue`, with `context` in it. What is wrong with the options is thrown here, as std::bad_alloc and
  /// std::system_error (no thread for a worker) are, and then there is no event. On any thread; the work is done by the
  /// executor's workers for resources (resource_workers()), which outlive the last event.
  ///
  /// Borrowed memory stays until the event has been read, and then until the region is released. See fi_mr(3).
  [[nodiscard]] pending_region submit(std::span<std::byte> memory, registration_options options, event_queue& queue,
                                      void* context);
  /// The same for several ranges as one, see register_memory(). `ranges` is needed until the call returns.
  [[nodiscard]] pending_region submit(std::span<const std::span<std::byte>> ranges, registration_options options,
                                      event_queue& queue, void* context);
  /// The same for memory that the region then owns. `owner` is taken in any case, and destroyed if this fails.
  template <memory_owner Owner>
  [[nodiscard]] pending_region submit(Owner&& owner, registration_options options, event_queue& queue, void* context)
    requires(!std::is_reference_v<Owner>)
  {
    return submit_state(own(std::forward<Owner>(owner)), options, queue, context);
  }

  /// For region::bind() and region::enable().
  void count_writes_of(detail::region_state& target, std::shared_ptr<detail::write_counter_core> counter);
  void enable(detail::region_state& target);
  /// For region::refresh(), on a worker: `item` is the registration of `target`, which nobody uses.
  void refresh_now(registration& item, detail::region_state& target);
  /// For region::reregister(): the same for what is to be registered otherwise. Whether it still is registered when
  /// this throws is for `item` to say.
  void reregister_now(std::optional<registration>& item, detail::region_state& target, std::span<std::byte> memory,
                      const registration_options& options);

  /// Registers on the calling thread, which may block: for workers. The same errors.
  [[nodiscard]] registration register_now(std::span<std::byte> memory, const registration_options& options);
  /// The same for a record, whose ranges say what, with every fabric there is.
  void register_now(memory_record& target, const registration_options& options);
  void register_now(detail::region_state& target);
  /// Deregisters on the calling thread, which may block. Nobody touches the memory once it returns.
  void deregister_now(registration& item) noexcept;
  void deregister_now(memory_record& target) noexcept;

  /// What peers need to use `size` bytes of registered memory for `open`.
  [[nodiscard]] remote_region describe(const memory_record& target, std::uint64_t size, mr::usage open) const;

  /// Which of its device's fabrics it is the domain of: its place in memory_record::in(). Set before it registers
  /// anything; a domain that stands alone is 0.
  [[nodiscard]] std::size_t fabric() const noexcept { return fabric_; }
  virtual void be_fabric(std::size_t place) noexcept { fabric_ = place; }

  /// Memory for a pool's arena: anonymous, unless the domain says otherwise. Work for a worker; throws errc::no_memory,
  /// or the system's error.
  [[nodiscard]] virtual mapping provide(std::size_t bytes, bool huge_pages, int node, weft::system_calls& calls);

 protected:
  domain(std::string name, const domain_capabilities& capabilities)
      : name_(std::move(name)), capabilities_(capabilities) {}

  /// Called as do_register() and do_deregister() are: registers all of a record with every fabric, or with none. Here
  /// there is one.
  virtual void do_register_all(memory_record& target, const registration_options& options);
  virtual void do_deregister_all(memory_record& target) noexcept;
  virtual remote_region do_describe(const memory_record& target, std::uint64_t size, mr::usage open) const;
  /// Called on any thread but an executor's, with options that have been checked: makes of `item`, which nobody uses,
  /// and which is `target`'s, another registration: here one that is made before the old one goes. Throws weft::error,
  /// with `item` as it was, or empty if it could not be kept.
  virtual void do_reregister(std::optional<registration>& item, detail::region_state& target,
                             std::span<std::byte> memory, const registration_options& options);
  /// Called as do_register() is, for more than one range: only if max_ranges allows it.
  virtual registration do_register_ranges(std::span<const std::span<std::byte>> ranges,
                                          const registration_options& options);
  /// Called on any thread, where capabilities().disabled, for what was registered so: has `counter`, which stays until
  /// `item` is deregistered, count from when peers are let in; lets them in.
  virtual void do_count_writes(const registration& item, detail::write_counter_core& counter);
  virtual void do_enable(const registration& item);
  /// Called on any thread but an executor's: looks anew at the pages of `item`, which nobody on this side uses. Here it
  /// is registered anew. Throws weft::error, with `item` as it was.
  virtual void do_refresh(registration& item, detail::region_state& target);

  /// do_register() or do_register_ranges(), for what `target` says.
  [[nodiscard]] registration register_as(const memory_record& target, const registration_options& options);

 private:
  /// Called on any thread but an executor's, many at a time, with options that have been checked against
  /// capabilities(). Throws weft::error.
  virtual registration do_register(std::span<std::byte> memory, const registration_options& options) = 0;
  /// Called on any thread. When it returns, neither the transport nor a peer touches the memory.
  virtual void do_deregister(registration& item) noexcept = 0;

  template <memory_owner Owner>
  std::unique_ptr<detail::region_state> own(Owner&& owner) {
    auto state = std::make_unique<detail::owning_region_state<Owner>>(shared_from_this(), std::forward<Owner>(owner));
    state->bytes = detail::bytes_of(state->owner);
    return state;
  }

  void check(std::span<std::byte> memory, const registration_options& options) const;
  void check_ranges(std::span<const std::span<std::byte>> ranges, const registration_options& options) const;
  void check_supported(const registration_options& options) const;
  [[nodiscard]] std::unique_ptr<detail::region_state> borrow(std::span<const std::span<std::byte>> ranges,
                                                             const registration_options& options);
  task<region> register_state(std::unique_ptr<detail::region_state> state, registration_options options);
  pending_region submit_state(std::unique_ptr<detail::region_state> state, const registration_options& options,
                              event_queue& queue, void* context);

  template <class Register>
  void counted(std::size_t bytes, const Register& make);

  std::string name_;
  domain_capabilities capabilities_;
  std::size_t fabric_ = 0;
  std::atomic<std::uint64_t> registrations_{0};
  std::atomic<std::uint64_t> registered_bytes_{0};
  std::atomic<std::uint64_t> failures_{0};
  std::atomic<std::uint64_t> ended_{0};
};

/// Adds what a domain has done to metrics, under a name for it.
void add_to(metrics& all, const domain_statistics& what, std::string_view name);

}  // namespace weft::mr
