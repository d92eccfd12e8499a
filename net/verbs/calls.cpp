// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/system/persistence.hpp>
#include <weft/net/verbs/calls.hpp>

#include <fcntl.h>

#include <fstream>

namespace weft::net::verbs {
namespace {

constinit rdma_calls instance;

// The three ways in which these libraries report that a call has failed.
int from_errno(int result) noexcept { return result < 0 ? -errno : result; }  // -1, with errno
int from_number(int number) noexcept {                                        // the error number, or at times -1
  return number < 0 ? -errno : -number;
}
// null, with errno, which is cleared first because a driver may not set it
template <class T, class Call>
int from_pointer(T** place, Call call) noexcept {
  errno = 0;
  T* const made = call();
  if (made == nullptr) return errno != 0 ? -errno : -EINVAL;
  *place = made;
  return 0;
}

}  // namespace

rdma_calls& rdma_calls::libraries() noexcept { return instance; }

int rdma_calls::fork_init() noexcept { return from_number(::ibv_fork_init()); }
ibv_fork_status rdma_calls::is_fork_initialized() noexcept { return ::ibv_is_fork_initialized(); }
int rdma_calls::get_device_list(int* count, ibv_device*** list) noexcept {
  return from_pointer(list, [&] { return ::ibv_get_device_list(count); });
}
void rdma_calls::free_device_list(ibv_device** list) noexcept { ::ibv_free_device_list(list); }
int rdma_calls::open_device(ibv_device* which, ibv_context** opened) noexcept {
  return from_pointer(opened, [&] { return ::ibv_open_device(which); });
}
int rdma_calls::close_device(ibv_context* context) noexcept { return from_errno(::ibv_close_device(context)); }
int rdma_calls::query_device(ibv_context* context, ibv_device_attr* found) noexcept {
  return from_number(::ibv_query_device(context, found));
}
int rdma_calls::query_device_ex(ibv_context* context, ibv_device_attr_ex* found) noexcept {
  return from_number(::ibv_query_device_ex(context, nullptr, found));
}
int rdma_calls::query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* found) noexcept {
  return from_number(::ibv_query_port(context, port, found));
}
int rdma_calls::query_gid(ibv_context* context, std::uint8_t port, int index, ibv_gid* found) noexcept {
  return from_errno(::ibv_query_gid(context, port, index, found));
}
int rdma_calls::alloc_pd(ibv_context* context, ibv_pd** made) noexcept {
  return from_pointer(made, [&] { return ::ibv_alloc_pd(context); });
}
int rdma_calls::dealloc_pd(ibv_pd* pd) noexcept { return from_number(::ibv_dealloc_pd(pd)); }
int rdma_calls::get_async_event(ibv_context* context, ibv_async_event* found) noexcept {
  return from_errno(::ibv_get_async_event(context, found));
}
void rdma_calls::ack_async_event(ibv_async_event* event) noexcept { ::ibv_ack_async_event(event); }
int rdma_calls::set_nonblocking(int fd) noexcept {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags < 0 ? -errno : from_errno(::fcntl(fd, F_SETFL, flags | O_NONBLOCK));
}

int rdma_calls::numa_node(const std::string& device) const {
  std::ifstream file("/sys/class/infiniband/" + device + "/device/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

std::string rdma_calls::why_not_dax(std::span<const std::byte> memory) const { return mr::detail::why_not_dax(memory); }

// Also serves as ibv_reg_mr(3), which is the same with the memory's own address as iova. ibv_reg_mr_iova2() drops
// optional flags that the kernel does not know.
int rdma_calls::reg_mr(ibv_pd* pd, void* memory, std::size_t bytes, std::uint64_t iova, unsigned access,
                       ibv_mr** made) noexcept {
  return from_pointer(made, [&] { return ::ibv_reg_mr_iova2(pd, memory, bytes, iova, access); });
}
int rdma_calls::reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t bytes, std::uint64_t iova, int fd,
                              unsigned access, ibv_mr** made) noexcept {
  return from_pointer(made, [&] { return ::ibv_reg_dmabuf_mr(pd, offset, bytes, iova, fd, static_cast<int>(access)); });
}
int rdma_calls::dereg_mr(ibv_mr* region) noexcept { return from_number(::ibv_dereg_mr(region)); }
int rdma_calls::alloc_mw(ibv_pd* pd, ibv_mw_type type, ibv_mw** made) noexcept {
  return from_pointer(made, [&] { return ::ibv_alloc_mw(pd, type); });
}
int rdma_calls::dealloc_mw(ibv_mw* window) noexcept { return from_number(::ibv_dealloc_mw(window)); }
int rdma_calls::bind_mw(ibv_qp* pair, ibv_mw* window, ibv_mw_bind* wanted) noexcept {
  return from_number(::ibv_bind_mw(pair, window, wanted));
}

int rdma_calls::create_comp_channel(ibv_context* context, ibv_comp_channel** made) noexcept {
  return from_pointer(made, [&] { return ::ibv_create_comp_channel(context); });
}
int rdma_calls::destroy_comp_channel(ibv_comp_channel* channel) noexcept {
  return from_number(::ibv_destroy_comp_channel(channel));
}
int rdma_calls::create_cq(ibv_context* context, int entries, ibv_comp_channel* channel, ibv_cq** made) noexcept {
  return from_pointer(made, [&] { return ::ibv_create_cq(context, entries, nullptr, channel, 0); });
}
int rdma_calls::destroy_cq(ibv_cq* queue) noexcept { return from_number(::ibv_destroy_cq(queue)); }
int rdma_calls::req_notify_cq(ibv_cq* queue) noexcept { return from_number(::ibv_req_notify_cq(queue, 0)); }
int rdma_calls::get_cq_event(ibv_comp_channel* channel) noexcept {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  return from_errno(::ibv_get_cq_event(channel, &queue, &context));
}
void rdma_calls::ack_cq_events(ibv_cq* queue, unsigned count) noexcept { ::ibv_ack_cq_events(queue, count); }
// Does without the extended queue (ibv_create_cq_ex(3)), because rxe's in rdma-core 44 overruns its own index.
int rdma_calls::poll_cq(ibv_cq* queue, int most, ibv_wc* found) noexcept { return ::ibv_poll_cq(queue, most, found); }

int rdma_calls::create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted, ibv_qp** made) noexcept {
  return from_pointer(made, [&] { return ::ibv_create_qp(pd, wanted); });
}
int rdma_calls::modify_qp(ibv_qp* pair, ibv_qp_attr* wanted, int mask) noexcept {
  return from_number(::ibv_modify_qp(pair, wanted, mask));
}
int rdma_calls::destroy_qp(ibv_qp* pair) noexcept { return from_number(::ibv_destroy_qp(pair)); }
// Does without ibv_wr_start() and its companions, because they send wrong lengths on rxe in rdma-core 44. FLUSH and
// ATOMIC WRITE need them, but have no list of local memory, and so no such length.
int rdma_calls::post_send(ibv_qp* pair, ibv_send_wr* first, ibv_send_wr** refused) noexcept {
  return from_number(::ibv_post_send(pair, first, refused));
}
#ifdef WEFT_HAS_WR_FLUSH
static_assert(wr_flush_opcode == IBV_WR_FLUSH && wr_atomic_write_opcode == IBV_WR_ATOMIC_WRITE &&
              with_flush == IBV_QP_EX_WITH_FLUSH && with_atomic_write == IBV_QP_EX_WITH_ATOMIC_WRITE &&
              access_flush_persistent == IBV_ACCESS_FLUSH_PERSISTENT);

bool rdma_calls::has_flush() const noexcept { return true; }

// send_ops_flags lists the operations of ibv_wr_start(3). All other operations use ibv_post_send(3); the manual pages
// of both allow that.
int rdma_calls::create_qp_ex(ibv_pd* pd, ibv_qp_init_attr* wanted, std::uint64_t operations, ibv_qp** made) noexcept {
  ibv_qp_init_attr_ex all{};
  all.send_cq = wanted->send_cq;
  all.recv_cq = wanted->recv_cq;
  all.srq = wanted->srq;
  all.cap = wanted->cap;
  all.qp_type = wanted->qp_type;
  all.sq_sig_all = wanted->sq_sig_all;
  all.pd = pd;
  all.send_ops_flags = operations;
  all.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  const int result = from_pointer(made, [&] { return ::ibv_create_qp_ex(pd->context, &all); });
  wanted->cap = all.cap;
  return result;
}

// A length has 32 bits on the wire, so a longer flush covers the whole region.
int rdma_calls::wr_flush(ibv_qp* pair, const ibv_send_wr& what) noexcept {
  ibv_qp_ex* const to = ::ibv_qp_to_qp_ex(pair);
  const std::uint64_t bytes = what.wr.atomic.compare_add;
  const bool fits = bytes <= UINT32_MAX;
  ::ibv_wr_start(to);
  to->wr_id = what.wr_id;
  to->wr_flags = what.send_flags;
  ::ibv_wr_flush(to, what.wr.atomic.rkey, what.wr.atomic.remote_addr, fits ? bytes : 0, IBV_FLUSH_PERSISTENT,
                 fits ? IBV_FLUSH_RANGE : IBV_FLUSH_MR);
  return from_number(::ibv_wr_complete(to));
}

int rdma_calls::wr_atomic_write(ibv_qp* pair, const ibv_send_wr& what) noexcept {
  ibv_qp_ex* const to = ::ibv_qp_to_qp_ex(pair);
  ::ibv_wr_start(to);
  to->wr_id = what.wr_id;
  to->wr_flags = what.send_flags;
  ::ibv_wr_atomic_write(to, what.wr.rdma.rkey, what.wr.rdma.remote_addr,
                        reinterpret_cast<const void*>(what.sg_list->addr));
  return from_number(::ibv_wr_complete(to));
}
#else
bool rdma_calls::has_flush() const noexcept { return false; }
int rdma_calls::create_qp_ex(ibv_pd*, ibv_qp_init_attr*, std::uint64_t, ibv_qp**) noexcept { return -EOPNOTSUPP; }
int rdma_calls::wr_flush(ibv_qp*, const ibv_send_wr&) noexcept { return -EOPNOTSUPP; }
int rdma_calls::wr_atomic_write(ibv_qp*, const ibv_send_wr&) noexcept { return -EOPNOTSUPP; }
#endif
int rdma_calls::post_recv(ibv_qp* pair, ibv_recv_wr* first, ibv_recv_wr** refused) noexcept {
  return from_number(::ibv_post_recv(pair, first, refused));
}

int rdma_calls::create_srq(ibv_pd* pd, ibv_srq_init_attr* wanted, ibv_srq** made) noexcept {
  return from_pointer(made, [&] { return ::ibv_create_srq(pd, wanted); });
}
int rdma_calls::destroy_srq(ibv_srq* queue) noexcept { return from_number(::ibv_destroy_srq(queue)); }
int rdma_calls::post_srq_recv(ibv_srq* queue, ibv_recv_wr* first, ibv_recv_wr** refused) noexcept {
  return from_number(::ibv_post_srq_recv(queue, first, refused));
}

int rdma_calls::create_event_channel(rdma_event_channel** made) noexcept {
  return from_pointer(made, [&] { return ::rdma_create_event_channel(); });
}
void rdma_calls::destroy_event_channel(rdma_event_channel* channel) noexcept { ::rdma_destroy_event_channel(channel); }
int rdma_calls::get_cm_event(rdma_event_channel* channel, rdma_cm_event** found) noexcept {
  return from_errno(::rdma_get_cm_event(channel, found));
}
int rdma_calls::ack_cm_event(rdma_cm_event* event) noexcept { return from_errno(::rdma_ack_cm_event(event)); }
int rdma_calls::create_id(rdma_event_channel* channel, void* context, rdma_cm_id** made) noexcept {
  return from_errno(::rdma_create_id(channel, made, context, RDMA_PS_TCP));
}
int rdma_calls::destroy_id(rdma_cm_id* id) noexcept { return from_errno(::rdma_destroy_id(id)); }
int rdma_calls::migrate_id(rdma_cm_id* id, rdma_event_channel* channel) noexcept {
  return from_errno(::rdma_migrate_id(id, channel));
}
int rdma_calls::set_option(rdma_cm_id* id, int level, int name, void* value, std::size_t bytes) noexcept {
  return from_errno(::rdma_set_option(id, level, name, value, bytes));
}
int rdma_calls::bind_addr(rdma_cm_id* id, sockaddr* address) noexcept {
  return from_errno(::rdma_bind_addr(id, address));
}
int rdma_calls::listen(rdma_cm_id* id, int backlog) noexcept { return from_errno(::rdma_listen(id, backlog)); }
int rdma_calls::resolve_addr(rdma_cm_id* id, sockaddr* source, sockaddr* target, int timeout_ms) noexcept {
  return from_errno(::rdma_resolve_addr(id, source, target, timeout_ms));
}
int rdma_calls::resolve_route(rdma_cm_id* id, int timeout_ms) noexcept {
  return from_errno(::rdma_resolve_route(id, timeout_ms));
}
int rdma_calls::init_qp_attr(rdma_cm_id* id, ibv_qp_attr* attributes, int* mask) noexcept {
  return from_errno(::rdma_init_qp_attr(id, attributes, mask));
}
int rdma_calls::connect(rdma_cm_id* id, rdma_conn_param* wanted) noexcept {
  return from_errno(::rdma_connect(id, wanted));
}
int rdma_calls::establish(rdma_cm_id* id) noexcept { return from_errno(::rdma_establish(id)); }
int rdma_calls::accept(rdma_cm_id* id, rdma_conn_param* wanted) noexcept {
  return from_errno(::rdma_accept(id, wanted));
}
int rdma_calls::reject(rdma_cm_id* id, const void* data, std::uint8_t bytes) noexcept {
  return from_errno(::rdma_reject(id, data, bytes));
}
int rdma_calls::disconnect(rdma_cm_id* id) noexcept { return from_errno(::rdma_disconnect(id)); }
int rdma_calls::notify(rdma_cm_id* id, ibv_event_type event) noexcept { return from_errno(::rdma_notify(id, event)); }

}  // namespace weft::net::verbs
