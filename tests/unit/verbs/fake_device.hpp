// SPDX-License-Identifier: Apache-2.0
// Libraries without a kernel behind them: devices that exist only here, and calls that fail on request.
#pragma once

#include <weft/net/verbs/calls.hpp>

#include <sys/eventfd.h>
#include <unistd.h>

#include <deque>
#include <map>

#include "kit/standard.hpp"

namespace weft::test {

/// Counts what is made and destroyed, and keeps what it was told.
class fake_libraries : public net::verbs::rdma_calls {
 public:
  explicit fake_libraries(const std::vector<std::string>& names, std::map<std::string, int> failing = {})
      : failures(std::move(failing)) {
    for (const std::string& name : names) {
      auto device = std::make_unique<ibv_device>();
      std::strncpy(device->name, name.c_str(), sizeof device->name - 1);
      device->transport_type = IBV_TRANSPORT_IB;
      list_.push_back(device.get());
      devices_.push_back(std::move(device));
    }
  }

  /// Its devices speak iWARP, for whoever opens one from now on.
  void become_rnics() noexcept {
    for (const auto& each : devices_) each->transport_type = IBV_TRANSPORT_IWARP;
  }

  /// The device of that name is none that RDMA's connections reach, as EFA's.
  void lose_connections(std::string_view name, ibv_transport_type transport = IBV_TRANSPORT_UNSPECIFIED) noexcept {
    for (const auto& each : devices_) {
      if (name == each->name) each->transport_type = transport;
    }
  }

  /// What the next call of a kind returns instead of doing anything.
  std::map<std::string, int> failures;
  ibv_port_state port_state = IBV_PORT_ACTIVE;
  std::uint8_t active_port = 0;    // the only one that is up; 0: each is in port_state
  std::vector<unsigned> asked_of;  // ports, in the order in which they were asked of
  ibv_mtu port_mtu = IBV_MTU_4096;
  std::uint32_t port_message_bytes = 1 << 20;
  ibv_device_attr limits = usual_limits();
  struct registration {
    std::uint64_t iova = 0;
    unsigned access = 0;
    bool operator==(const registration&) const = default;
  };
  std::vector<registration> registrations;  // all that there have been
  int failing_registration = 0;             // ENOMEM is what the n-th from now on yields; 0: none
  ibv_fork_status fork_status = IBV_FORK_UNNEEDED;
  int fork_inits = 0;
  ibv_odp_caps on_demand{};
  bool flushes = false;
  std::string not_dax;                         // why_not_dax()
  std::pair<void*, std::size_t> last_range{};  // of ibv_reg_mr(3)
  int dmabuf_failure = EOPNOTSUPP;             // 0: a descriptor of 0 or more can be registered
  std::uint64_t last_dmabuf_offset = 0;
  int last_dmabuf = -1;
  int contexts = 0;
  int domains = 0;
  int windows = 0;
  std::atomic<int> regions = 0;  // workers deregister
  int events_to_take = 0;
  int channel_failure = 0;  // 0: it is there
  int event_calls = 0;
  int arms = 0;
  unsigned acknowledged = 0;
  std::vector<ibv_wc> completions;

  [[nodiscard]] static ibv_device_attr usual_limits() {
    ibv_device_attr found{};
    found.phys_port_cnt = 1;
    found.atomic_cap = IBV_ATOMIC_HCA;
    found.device_cap_flags = IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    found.max_cqe = 1000;
    found.max_mr = 1000;
    found.max_mr_size = std::uint64_t{1} << 40;
    return found;
  }

  int fork_init() noexcept override {
    ++fork_inits;
    return failure_of("fork_init");
  }
  ibv_fork_status is_fork_initialized() noexcept override { return fork_status; }
  int get_device_list(int* count, ibv_device*** list) noexcept override {
    if (const int failure = failure_of("get_device_list"); failure != 0) return failure;
    *count = static_cast<int>(list_.size());
    *list = list_.data();
    return 0;
  }
  void free_device_list(ibv_device**) noexcept override {}
  int open_device(ibv_device* which, ibv_context** opened) noexcept override {
    const int result = make("open_device", contexts, opened);
    if (result == 0) (*opened)->device = which;
    return result;
  }
  int close_device(ibv_context* context) noexcept override { return destroy(contexts, context); }
  int query_device(ibv_context*, ibv_device_attr* found) noexcept override {
    *found = limits;
    return failure_of("query_device");
  }
  int query_device_ex(ibv_context*, ibv_device_attr_ex* found) noexcept override {
    found->odp_caps = on_demand;
    if (flushes) found->device_cap_flags_ex = net::verbs::can_flush_persistent;
    return failure_of("query_device_ex");
  }
  bool has_flush() const noexcept override { return true; }
  std::string why_not_dax(std::span<const std::byte>) const override { return not_dax; }
  int query_port(ibv_context*, std::uint8_t port, ibv_port_attr* found) noexcept override {
    asked_of.push_back(port);
    found->state = active_port == 0 ? port_state : port == active_port ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    found->gid_tbl_len = 1;
    found->active_mtu = port_mtu;
    found->max_mtu = IBV_MTU_4096;
    found->max_msg_sz = port_message_bytes;
    return failure_of("query_port");
  }
  // 10.0.0.PORT, as RoCE has it.
  int query_gid(ibv_context*, std::uint8_t port, int, ibv_gid* found) noexcept override {
    *found = {};
    found->raw[10] = found->raw[11] = 0xFF;
    found->raw[12] = 10;
    found->raw[15] = port;
    return failure_of("query_gid");
  }
  int alloc_pd(ibv_context*, ibv_pd** made) noexcept override { return make("alloc_pd", domains, made); }
  int dealloc_pd(ibv_pd* pd) noexcept override { return destroy(domains, pd); }
  int reg_mr(ibv_pd* pd, void* memory, std::size_t bytes, std::uint64_t iova, unsigned access,
             ibv_mr** made) noexcept override {
    if (const int failure = failure_of("reg_mr"); failure != 0) return failure;
    if (failing_registration != 0 && --failing_registration == 0) return -ENOMEM;
    ++regions;
    registrations.push_back({iova, access});
    last_range = {memory, bytes};
    const auto number = static_cast<unsigned>(registrations.size());
    *made = new ibv_mr{.context = {},
                       .pd = pd,
                       .addr = memory,
                       .length = bytes,
                       .handle = 0,
                       .lkey = 100 + number,
                       .rkey = 200 + number};
    return 0;
  }
  int reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t bytes, std::uint64_t iova, int fd, unsigned access,
                    ibv_mr** made) noexcept override {
    if (dmabuf_failure != 0) return -dmabuf_failure;
    if (fd < 0) return -EBADF;
    last_dmabuf_offset = offset;
    last_dmabuf = fd;
    return reg_mr(pd, nullptr, bytes, iova, access, made);
  }
  int dereg_mr(ibv_mr* region) noexcept override {
    if (const int failure = failure_of("dereg_mr"); failure != 0) return failure;
    return destroy(regions, region);
  }
  int alloc_mw(ibv_pd*, ibv_mw_type type, ibv_mw** made) noexcept override {
    const int result = make("alloc_mw", windows, made);
    if (result == 0) (*made)->type = type;
    return result;
  }
  int dealloc_mw(ibv_mw* window) noexcept override { return destroy(windows, window); }
  int set_nonblocking(int) noexcept override { return failure_of("set_nonblocking"); }
  int create_comp_channel(ibv_context*, ibv_comp_channel** made) noexcept override {
    return make("create_comp_channel", contexts, made);
  }
  int destroy_comp_channel(ibv_comp_channel* channel) noexcept override { return destroy(contexts, channel); }
  int create_cq(ibv_context*, int entries, ibv_comp_channel*, ibv_cq** made) noexcept override {
    const int result = make("create_cq", contexts, made);
    if (result == 0) (*made)->cqe = entries;
    return result;
  }
  int destroy_cq(ibv_cq* queue) noexcept override { return destroy(contexts, queue); }
  int req_notify_cq(ibv_cq*) noexcept override {
    ++arms;
    return failure_of("req_notify_cq");
  }
  int get_cq_event(ibv_comp_channel*) noexcept override {
    ++event_calls;
    if (channel_failure != 0) return -channel_failure;
    if (events_to_take == 0) return -EAGAIN;
    --events_to_take;
    return 0;
  }
  void ack_cq_events(ibv_cq*, unsigned count) noexcept override { acknowledged += count; }
  int poll_cq(ibv_cq*, int most, ibv_wc* found) noexcept override {
    if (const int failure = failure_of("poll_cq"); failure != 0) return failure;
    int count = 0;
    while (count < most && !completions.empty()) {
      found[count++] = completions.front();
      completions.erase(completions.begin());
    }
    return count;
  }

 private:
  int failure_of(const std::string& name) {
    const auto found = failures.find(name);
    if (found == failures.end()) return 0;
    const int failure = found->second;
    failures.erase(found);
    return -failure;
  }
  template <class Object>
  int make(const std::string& name, int& count, Object** made) {
    if (const int failure = failure_of(name); failure != 0) return failure;
    ++count;
    *made = new Object{};
    return 0;
  }
  template <class Count, class Object>
  int destroy(Count& count, Object* gone) {
    --count;
    delete gone;
    return 0;
  }

  std::vector<std::unique_ptr<ibv_device>> devices_;
  std::vector<ibv_device*> list_;
};

/// With descriptors that can be watched, and events to raise.
class eventful_libraries : public fake_libraries {
 public:
  eventful_libraries() : fake_libraries({"rxe0"}) {
    limits.max_srq = 1;
    limits.max_srq_wr = 8;
  }

  int shared_queues = 0;
  int asked = 0;  // for an event
  int lost = 0;   // the error of the device that was taken away; 0: it is there
  int acknowledgements = 0;
  int post_failure = 0;  // of the next shared receive
  int destroy_failure = 0;
  std::unique_ptr<ibv_srq> kept;   // that could not be destroyed
  std::function<void()> on_taken;  // the next event, before its taker has it
  std::vector<std::uint64_t> posted;

  void raise(const ibv_async_event& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
    make_readable(async_fd_);
  }
  void take_away(int number) {
    const std::lock_guard lock(mutex_);
    lost = number;
    make_readable(async_fd_);
  }

  int open_device(ibv_device* which, ibv_context** opened) noexcept override {
    const int result = fake_libraries::open_device(which, opened);
    if (result == 0) (*opened)->async_fd = async_fd_ = ::eventfd(0, EFD_NONBLOCK);
    return result;
  }
  int close_device(ibv_context* context) noexcept override {
    ::close(context->async_fd);
    return fake_libraries::close_device(context);
  }
  int get_async_event(ibv_context*, ibv_async_event* found) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      ++asked;
      if (lost != 0) return -lost;
      if (events_.empty()) {
        eventfd_t count = 0;
        ::eventfd_read(async_fd_, &count);
        return -EAGAIN;
      }
      *found = events_.front();
      events_.pop_front();
    }
    if (on_taken) std::exchange(on_taken, nullptr)();
    return 0;
  }
  void ack_async_event(ibv_async_event*) noexcept override {
    const std::lock_guard lock(mutex_);
    ++acknowledgements;
  }
  int create_comp_channel(ibv_context* context, ibv_comp_channel** made) noexcept override {
    const int result = fake_libraries::create_comp_channel(context, made);
    if (result == 0) (*made)->fd = ::eventfd(0, EFD_NONBLOCK);
    return result;
  }
  int destroy_comp_channel(ibv_comp_channel* channel) noexcept override {
    ::close(channel->fd);
    return fake_libraries::destroy_comp_channel(channel);
  }
  int create_event_channel(rdma_event_channel** made) noexcept override {
    *made = new rdma_event_channel{.fd = ::eventfd(0, EFD_NONBLOCK)};
    return 0;
  }
  void destroy_event_channel(rdma_event_channel* channel) noexcept override {
    ::close(channel->fd);
    delete channel;
  }
  int get_cm_event(rdma_event_channel*, rdma_cm_event**) noexcept override { return -EAGAIN; }
  int create_srq(ibv_pd*, ibv_srq_init_attr*, ibv_srq** made) noexcept override {
    ++shared_queues;
    *made = new ibv_srq{};
    return 0;
  }
  int destroy_srq(ibv_srq* queue) noexcept override {
    --shared_queues;
    kept.reset(queue);
    if (destroy_failure != 0) return -destroy_failure;
    kept.reset();
    return 0;
  }
  int post_srq_recv(ibv_srq*, ibv_recv_wr* first, ibv_recv_wr** refused) noexcept override {
    if (const int failure = std::exchange(post_failure, 0); failure != 0) {
      *refused = first;
      return -failure;
    }
    posted.push_back(first->wr_id);
    return 0;
  }

 private:
  static void make_readable(int fd) { ::eventfd_write(fd, 1); }

  std::mutex mutex_;
  std::deque<ibv_async_event> events_;
  int async_fd_ = -1;
};

}  // namespace weft::test
