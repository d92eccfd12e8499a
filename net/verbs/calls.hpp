// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace weft::net::verbs {

/// The bits of ibv_device_attr_ex::device_cap_flags_ex for FLUSH to persistent memory and for ATOMIC WRITE, from
/// rdma/ib_user_verbs.h. Both exist since rdma-core 46 and Linux 6.2; older headers lack these numbers and those that
/// follow.
inline constexpr std::uint64_t can_flush_persistent = std::uint64_t{1} << 39;
inline constexpr std::uint64_t can_write_atomically = std::uint64_t{1} << 40;
/// IBV_ACCESS_FLUSH_PERSISTENT, of ibv_reg_mr(3) and ibv_modify_qp(3)
inline constexpr unsigned access_flush_persistent = 1U << 9;
/// IBV_QP_EX_WITH_FLUSH and IBV_QP_EX_WITH_ATOMIC_WRITE, of ibv_create_qp_ex(3)
inline constexpr std::uint64_t with_flush = std::uint64_t{1} << 11;
inline constexpr std::uint64_t with_atomic_write = std::uint64_t{1} << 12;
/// IBV_WR_FLUSH. wr.atomic.compare_add holds the number of bytes.
inline constexpr auto wr_flush_opcode = static_cast<ibv_wr_opcode>(14);
/// IBV_WR_ATOMIC_WRITE, with wr.rdma and one element of eight bytes, which are copied when the request is posted.
inline constexpr auto wr_atomic_write_opcode = static_cast<ibv_wr_opcode>(15);

/// The calls into libibverbs and librdmacm that can fail: one seam, through which a test injects failures or puts a
/// device of its own in their place.
///
/// Unless its comment says otherwise, each function makes the call of that name, prefixed with ibv_ or rdma_, in
/// section 3 of the manual. It returns 0 or -errno, and yields what it creates through its last parameter; poll_cq()
/// returns a count, or any negative number. Called from any thread, as far as the manual allows it.
class rdma_calls {
 public:
  virtual ~rdma_calls() = default;

  // Devices.
  virtual int fork_init() noexcept;
  [[nodiscard]] virtual ibv_fork_status is_fork_initialized() noexcept;
  virtual int get_device_list(int* count, ibv_device*** list) noexcept;
  virtual void free_device_list(ibv_device** list) noexcept;
  virtual int open_device(ibv_device* which, ibv_context** opened) noexcept;
  virtual int close_device(ibv_context* context) noexcept;
  virtual int query_device(ibv_context* context, ibv_device_attr* found) noexcept;
  virtual int query_device_ex(ibv_context* context, ibv_device_attr_ex* found) noexcept;
  virtual int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* found) noexcept;
  virtual int query_gid(ibv_context* context, std::uint8_t port, int index, ibv_gid* found) noexcept;
  virtual int alloc_pd(ibv_context* context, ibv_pd** made) noexcept;
  virtual int dealloc_pd(ibv_pd* pd) noexcept;
  virtual int get_async_event(ibv_context* context, ibv_async_event* found) noexcept;
  virtual void ack_async_event(ibv_async_event* event) noexcept;
  /// Sets O_NONBLOCK with fcntl(2): calls on the descriptor return -EAGAIN instead of waiting.
  virtual int set_nonblocking(int fd) noexcept;
  /// Whether weft was built with libraries that have ibv_wr_flush(3) and ibv_wr_atomic_write(3).
  [[nodiscard]] virtual bool has_flush() const noexcept;
  /// The NUMA node nearest to the device of that name, from sysfs; -1: none, or not known.
  [[nodiscard]] virtual int numa_node(const std::string& device) const;

  // Memory.
  /// Says why FLUSH does not make the memory persistent, from /proc/self/maps and sysfs; empty if it does.
  [[nodiscard]] virtual std::string why_not_dax(std::span<const std::byte> memory) const;
  /// Registers memory with an iova: ibv_reg_mr_iova2(), which drops optional flags that the kernel does not know.
  virtual int reg_mr(ibv_pd* pd, void* memory, std::size_t bytes, std::uint64_t iova, unsigned access,
                     ibv_mr** made) noexcept;
  virtual int reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t bytes, std::uint64_t iova, int fd,
                            unsigned access, ibv_mr** made) noexcept;
  virtual int dereg_mr(ibv_mr* region) noexcept;
  virtual int alloc_mw(ibv_pd* pd, ibv_mw_type type, ibv_mw** made) noexcept;
  virtual int dealloc_mw(ibv_mw* window) noexcept;
  virtual int bind_mw(ibv_qp* pair, ibv_mw* window, ibv_mw_bind* wanted) noexcept;

  // Completion queues.
  virtual int create_comp_channel(ibv_context* context, ibv_comp_channel** made) noexcept;
  virtual int destroy_comp_channel(ibv_comp_channel* channel) noexcept;
  virtual int create_cq(ibv_context* context, int entries, ibv_comp_channel* channel, ibv_cq** made) noexcept;
  virtual int destroy_cq(ibv_cq* queue) noexcept;
  virtual int req_notify_cq(ibv_cq* queue) noexcept;
  virtual int get_cq_event(ibv_comp_channel* channel) noexcept;
  virtual void ack_cq_events(ibv_cq* queue, unsigned count) noexcept;
  virtual int poll_cq(ibv_cq* queue, int most, ibv_wc* found) noexcept;

  // Queue pairs.
  virtual int create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted, ibv_qp** made) noexcept;
  /// Creates a queue pair for these operations too: with_flush, with_atomic_write. Returns -EOPNOTSUPP if the device's
  /// driver in user space lacks one, or if has_flush() is false.
  virtual int create_qp_ex(ibv_pd* pd, ibv_qp_init_attr* wanted, std::uint64_t operations, ibv_qp** made) noexcept;
  virtual int modify_qp(ibv_qp* pair, ibv_qp_attr* wanted, int mask) noexcept;
  virtual int destroy_qp(ibv_qp* pair) noexcept;
  virtual int post_send(ibv_qp* pair, ibv_send_wr* first, ibv_send_wr** refused) noexcept;
  /// Posts one request of wr_flush_opcode, which post_send() does not take: ibv_wr_flush(3).
  virtual int wr_flush(ibv_qp* pair, const ibv_send_wr& what) noexcept;
  /// The same of wr_atomic_write_opcode: ibv_wr_atomic_write(3).
  virtual int wr_atomic_write(ibv_qp* pair, const ibv_send_wr& what) noexcept;
  virtual int post_recv(ibv_qp* pair, ibv_recv_wr* first, ibv_recv_wr** refused) noexcept;

  // Shared receive queues.
  virtual int create_srq(ibv_pd* pd, ibv_srq_init_attr* wanted, ibv_srq** made) noexcept;
  virtual int destroy_srq(ibv_srq* queue) noexcept;
  virtual int post_srq_recv(ibv_srq* queue, ibv_recv_wr* first, ibv_recv_wr** refused) noexcept;

  // Connections.
  virtual int create_event_channel(rdma_event_channel** made) noexcept;
  virtual void destroy_event_channel(rdma_event_channel* channel) noexcept;
  virtual int get_cm_event(rdma_event_channel* channel, rdma_cm_event** found) noexcept;
  virtual int ack_cm_event(rdma_cm_event* event) noexcept;
  virtual int create_id(rdma_event_channel* channel, void* context, rdma_cm_id** made) noexcept;
  virtual int destroy_id(rdma_cm_id* id) noexcept;
  virtual int migrate_id(rdma_cm_id* id, rdma_event_channel* channel) noexcept;
  virtual int set_option(rdma_cm_id* id, int level, int name, void* value, std::size_t bytes) noexcept;
  virtual int bind_addr(rdma_cm_id* id, sockaddr* address) noexcept;
  virtual int listen(rdma_cm_id* id, int backlog) noexcept;
  virtual int resolve_addr(rdma_cm_id* id, sockaddr* source, sockaddr* target, int timeout_ms) noexcept;
  virtual int resolve_route(rdma_cm_id* id, int timeout_ms) noexcept;
  virtual int init_qp_attr(rdma_cm_id* id, ibv_qp_attr* attributes, int* mask) noexcept;
  virtual int connect(rdma_cm_id* id, rdma_conn_param* wanted) noexcept;
  virtual int establish(rdma_cm_id* id) noexcept;
  virtual int accept(rdma_cm_id* id, rdma_conn_param* wanted) noexcept;
  virtual int reject(rdma_cm_id* id, const void* data, std::uint8_t bytes) noexcept;
  virtual int disconnect(rdma_cm_id* id) noexcept;
  virtual int notify(rdma_cm_id* id, ibv_event_type event) noexcept;

  /// The real libraries.
  [[nodiscard]] static rdma_calls& libraries() noexcept;
};

/// Whether a call has failed because the kernel has removed the device, which then accesses no memory any more.
[[nodiscard]] constexpr bool has_gone(int result) noexcept { return result == -EIO || result == -ENODEV; }

}  // namespace weft::net::verbs
