// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection.hpp>
#include <weft/net/connection/connection_core.hpp>
#include <weft/net/connection/exposures.hpp>
#include <weft/net/link/failed_task.hpp>
#include <weft/runtime/core/root_task.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace weft::net {

namespace {

template <class T>
task<T> moved_from() {
  return failed_task<T>(errc::closed, moved_from_words);
}

}  // namespace

connection::connection(std::unique_ptr<connection_core> core) noexcept
    : core_(std::unique_ptr<connection_core, core_deleter>(core.release())),
      exceptions_before_(weft::detail::exceptions_under_way()) {}

connection& connection::operator=(connection&& other) noexcept {
  release();
  core_ = std::move(other.core_);
  exceptions_before_ = other.exceptions_before_;
  return *this;
}

connection::~connection() { release(); }

void connection::core_deleter::operator()(connection_core* core) const noexcept { delete core; }

void connection::release() noexcept {
  if (core_ == nullptr) return;
  const bool unwinding = weft::detail::exceptions_under_way() > exceptions_before_;
  connection_core::reap(std::unique_ptr<connection_core>(core_.take().release()), unwinding);
}

connection_core& connection::checked() const {
  if (core_ == nullptr) [[unlikely]]
    detail::throw_misuse(errc::closed, moved_from_words);
  return *core_;
}

// Defined beside its callers, so that it is inlined into them.
void transfer::use(const sink& memory) {
  struct visitor {
    transfer& self;
    void operator()(const mr::slice& part) const noexcept {
      self.one_ = part;
      self.borrowed_ = true;
    }
    void operator()(mr::buffer* held) const noexcept {
      self.one_ = held->slice();
      self.shared_ = held;
    }
    void operator()(const sink::consumed& taken) const noexcept {
      self.one_ = taken.from->slice();
      self.owned_.swap(*taken.from);  // leaves an empty buffer there
    }
    void operator()(const mr::shared_buffer* held) const noexcept { self.share(*held); }
    void operator()(std::span<const mr::slice> list) const noexcept {
      self.several_ = list;
      self.is_list_ = self.borrowed_ = true;
    }
  };
  std::visit(visitor{*this}, memory.memory_);
}

[[gnu::flatten]] transfer connection::send(const payload& what, const send_options& how) {
  transfer item(core(), transfer_kind::send);
  item.use(what);
  item.how_ = how;
  return item;
}

bool connection::try_send(const payload& what, const send_options& how) {
  connection_core& here = checked();
  transfer item = send(what, how);
  if (here.out().try_send(item)) return true;
  item.give_back(what);
  return false;
}

task<> connection::send_bytes(std::span<const std::byte> bytes, const send_options& how) {
  if (core() == nullptr) return moved_from<void>();
  return send_copy(*core(), core()->state(), core()->keys(), bytes, how);
}

task<> connection::send_bytes(std::string_view text, const send_options& how) {
  return send_bytes(std::as_bytes(std::span(text)), how);
}

// The connection may be gone when the task begins, and after its wait for memory. So check_task() first asks `keys`;
// only then may `core`, and `state` in it, be used.
task<> connection::send_copy(connection_core& core, connection_state& state, std::shared_ptr<link_keys> keys,
                             std::span<const std::byte> bytes, send_options how) {
  check_task(state, *keys, "send to");
  const net::capabilities& can = core.properties();
  if (can.native && bytes.size() > can.max_send_bytes) {
    throw error(errc::message_too_large,
                fmt::format("send {} bytes, {} over {}: the peer takes at most {} bytes, its receive_size",
                            bytes.size(), core.peer(), core.fabric().name(), can.max_send_bytes));
  }
  auto memory = co_await core.pool().allocate(bytes.size());
  std::ranges::copy(bytes, memory.data());
  check_task(state, *keys, "send to");
  transfer item(&core, transfer_kind::send);
  item.use(payload(std::move(memory)));
  item.how_ = how;
  co_await item;
}

recv_operation connection::recv() { return recv_operation(core()); }

std::optional<message> connection::try_recv() { return checked().try_receive(); }

recv_into_operation connection::recv_into(const sink& memory) { return recv_into_operation(core(), memory); }

recv_or_throw_operation connection::recv_or_throw() { return recv_or_throw_operation(core()); }

transfer connection::write(const payload& source, const mr::remote_slice& target, const write_options& how) {
  transfer item(core(), transfer_kind::write);
  item.use(source);
  item.aim(target);
  item.how_.immediate = how.immediate;
  return item;
}

transfer connection::read(const sink& target, const mr::remote_slice& source) {
  transfer item(core(), transfer_kind::read);
  item.use(target);
  item.aim(source);
  return item;
}

prepared_memory connection::prepare(const mr::remote_slice& where) { return {core(), where}; }

transfer connection::flush(const mr::remote_slice& where, flush_type how) {
  const bool persists = how == flush_type::persistent;
  transfer item(core(), persists ? transfer_kind::persist : transfer_kind::flush);
  persists ? item.aim_to_persist(where) : item.aim(where);
  return item;
}

fetch_operation connection::fetch_add(const mr::remote_slice& where, std::uint64_t add) {
  fetch_operation item(core(), transfer_kind::fetch_add);
  item.aim(where);
  item.operand_ = add;
  return item;
}

fetch_operation connection::compare_swap(const mr::remote_slice& where, std::uint64_t expected, std::uint64_t desired) {
  fetch_operation item(core(), transfer_kind::compare_swap);
  item.aim(where);
  item.operand_ = desired;
  item.compare_ = expected;
  return item;
}

batch_operation connection::batch(std::span<transfer> operations) { return batch_operation(core(), operations); }

list_operation connection::write(std::span<const list_part> parts, const write_options& how) {
  return {core(), transfer_kind::write, parts, how};
}

list_operation connection::write(const block_list& blocks, const write_options& how) {
  return {core(), transfer_kind::write, blocks, how};
}

list_operation connection::read(std::span<const list_part> parts) { return {core(), transfer_kind::read, parts, {}}; }

list_operation connection::read(const block_list& blocks) { return {core(), transfer_kind::read, blocks, {}}; }

task<exposure> connection::expose(mr::buffer memory, mr::usage uses, const expose_options& how) {
  if (core() == nullptr) return moved_from<exposure>();
  return exposures::open(core()->state(), core()->keys(), std::move(memory), uses, how);
}

task<exposure> connection::expose(const mr::slice& range, mr::usage uses, const expose_options& how) {
  if (core() == nullptr) return moved_from<exposure>();
  return exposures::open(core()->state(), core()->keys(), range, uses, how);
}

void connection::confirm_retired(std::uint64_t key) { checked().confirm_retired(key); }

void connection::confirm_retired(const exposure& retired) { confirm_retired(retired.remote().key()); }

task<> connection::close() {
  if (core() == nullptr) return moved_from<void>();
  return connection_end::close(core()->end(), core()->state(), core()->keys());
}

void connection::abort() noexcept {
  if (core_ != nullptr) core_->abort("aborted by this end");
}

bool connection::is_open() const noexcept { return core_ != nullptr && !core()->state().has_ended(); }

task<error> connection::ended() {
  if (core() == nullptr) return moved_from<error>();
  return connection_end::wait_until_over(core()->end(), core()->state(), core()->keys());
}

const capabilities& connection::capabilities() const { return checked().properties(); }

connection_statistics connection::statistics() const { return checked().statistics(); }

std::vector<rail_statistics> connection::rails() const { return checked().rails(); }

std::string_view connection::peer() const noexcept { return core_ != nullptr ? core_->peer() : std::string_view(); }

std::string_view connection::fabric() const noexcept {
  return core_ != nullptr ? core_->fabric().name() : std::string_view();
}

std::string_view connection::passed_over() const noexcept {
  return core_ != nullptr ? core_->passed_over() : std::string_view();
}

std::span<const std::byte> connection::peer_private_data() const noexcept {
  return core_ != nullptr ? core_->peer_private_data() : std::span<const std::byte>();
}

}  // namespace weft::net
