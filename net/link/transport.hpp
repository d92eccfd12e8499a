// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/domain.hpp>
#include <weft/mr/pool.hpp>
#include <weft/mr/region/peer_gate.hpp>
#include <weft/mr/remote_region.hpp>
#include <weft/mr/slice.hpp>
#include <weft/mr/usage.hpp>
#include <weft/net/capabilities.hpp>
#include <weft/net/exposure_end.hpp>
#include <weft/net/link/direct_place.hpp>
#include <weft/net/link/native_features.hpp>
#include <weft/net/link/peer_names.hpp>
#include <weft/net/link/work_run.hpp>
#include <weft/net/statistics.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/result.hpp>
#include <weft/runtime/task.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// @file
/// The one interface between net and a transport. A connection sees a link; a transport sees requests to execute.

namespace weft::net {

/// The most scatter/gather elements of one request. A send needs one of them for work_request::own, the trailer.
inline constexpr std::size_t max_segments = 8;

/// The alignment, in bytes, of work_request::corner.
inline constexpr std::size_t corner_alignment = 8;

/// The kind of a request. A flush makes the peer's memory persistent, and is posted only to a link with
/// capabilities::device_flush.
enum class work_kind : std::uint8_t { send, write, read, fetch_add, compare_swap, flush };

/// One posted operation, as a transport sees it. It belongs to the connection, and stays valid with the memory that it
/// names from link::post() until link_events::completed().
struct work_request {
  std::uint16_t slot = 0;                    ///< its index in the connection's table: below link_parameters::send_depth
  work_kind kind = work_kind::send;          ///< the operation
  std::optional<std::uint32_t> immediate{};  ///< writes: reaches the peer as a message, after the data
  std::optional<std::uint64_t> invalidate{};  ///< sends: the peer's key that this send revokes
  std::uint64_t remote_key = 0;               ///< all but sends: the peer's key
  std::uint64_t remote_address = 0;           ///< all but sends: the address in the peer's memory
  /// The key and the address of the peer's memory on each fabric of its device, if native_features::rails is agreed.
  std::span<const named_place> names{};
  bool listed = false;        ///< with `names`: an element of a list, whose elements may take different rails
  std::uint64_t operand = 0;  ///< atomics: the value to add or to store; flushes: how many bytes
  std::uint64_t compare = 0;  ///< compare_swap: the value that is expected there
  /// Local memory, registered with the transport's domain: mr::memory_record::in() yields the registration. The
  /// processor may touch the bytes only if slice::kind() allows it.
  std::span<const mr::slice> segments{};
  /// A few bytes of the request's own, in no registration. A send transmits them behind the segments. Atomics, which
  /// have no segments, and reads without segments store the answer there; that of an atomic is eight bytes in this
  /// machine's byte order.
  std::span<std::byte> own{};
  void* corner = nullptr;  ///< the link's private room beside the request: link::corner_bytes()

  /// The bytes that the request moves.
  [[nodiscard]] std::size_t bytes() const noexcept { return own.size() + mr::detail::total_size(segments); }
};

/// Elements of a work_run that are posted together.
struct run_portion {
  std::size_t first = 0;                     ///< index of the first element in the run
  std::size_t count = 0;                     ///< number of elements; not 0
  work_kind kind = work_kind::write;         ///< write or read
  std::optional<std::uint32_t> immediate{};  ///< writes: reaches the peer after the data of the last element
};

/// One posted receive. It belongs to the connection, and stays valid with its memory from link::post_receive() until
/// link_events::received() or receive_flushed().
struct receive_work {
  std::uint16_t slot = 0;  ///< below link_parameters::receive_depth
  mr::slice memory;        ///< where the message is stored
};

/// A message that has filled a receive.
struct arrival {
  std::size_t bytes = 0;                           ///< length of the message, with its trailer
  std::optional<std::uint64_t> invalidated_key{};  ///< a key of this end that the message has revoked
  std::optional<std::uint32_t> immediate{};        ///< immediate data of a write; the receive's memory is then unused
  /// The message in the link's own memory, during link_events::received(); the receive's memory is then unused. Only
  /// with link_parameters::in_place.
  std::span<const std::byte> in_place{};
};

/// A message that has arrived, and has not been taken.
struct untaken_message {
  std::span<const std::byte> bytes{};  ///< with its trailer; the peer may change them at any time
};

/// How a request ended.
enum class work_status : std::uint8_t {
  done,
  flushed,        ///< the link ended first; the peer may have executed it all the same
  access_denied,  ///< the peer refused it, which ended the link
  bystander,      ///< flushed, because the peer refused an access by another key
  unknown,        ///< nobody can tell whether the peer executed it, and it must not be repeated; the link goes on
  taken_back,     ///< the peer refused it, because it had taken its memory back; the link goes on
  expired,        ///< the peer refused it, because the memory was lent until a time that had passed; the link goes on
};

/// The events of a link, which its connection receives. Called on the executor that owns both, in a turn of the link or
/// inside a call to it, but never inside link::start(). An event may call back into the link, and may post again the
/// request or receive that it is given; only closed() may destroy the link.
class link_events {
 public:
  /// A request has completed. Called for every posted request exactly once, in posting order.
  virtual void completed(work_request& work, work_status status) noexcept = 0;
  /// The oldest `count` elements of the run that are in flight have ended with `status`, in posting order with the
  /// requests. Each element ends exactly once; `count` is 1 unless the status is done or flushed.
  virtual void run_advanced([[maybe_unused]] work_run& run, [[maybe_unused]] std::size_t count,
                            [[maybe_unused]] work_status status) noexcept {}
  /// A message has filled the oldest receive.
  virtual void received(receive_work& work, const arrival& what) noexcept = 0;
  /// The receive will get no message, because the link has ended.
  virtual void receive_flushed(receive_work& work) noexcept = 0;
  /// The peer, which is not weft, has finished sending, between messages, and takes what is sent to it until
  /// shut_down(). Called at most once; a link need not report it.
  virtual void input_over() noexcept {}
  /// The link has ended. Called once, before anything is flushed. `orderly`: the peer has finished sending, between
  /// messages and with nothing outstanding. Otherwise `why` is the reason, which does not name the peer.
  virtual void ended(bool orderly, const error& why) noexcept = 0;
  /// Everything has completed or been flushed, and the link touches no memory any more.
  virtual void closed() noexcept = 0;
  /// The peer used a key of this end that had been taken back, and was refused; the link goes on.
  virtual void came_late([[maybe_unused]] std::uint64_t key, [[maybe_unused]] exposure_end how) noexcept {}

 protected:
  ~link_events() = default;
};

/// The parameters that a connection gives its link at link::start().
struct link_parameters {
  std::uint16_t send_depth = 0;               ///< the most requests posted at a time
  std::uint16_t receive_depth = 0;            ///< the most receives posted at a time
  bool native = false;                        ///< the peer is weft as well
  native_features agreed{};                   ///< native: the features that both ends have
  landing_place landing{};                    ///< native: the landing place of the peer's transport
  std::chrono::milliseconds overdue_after{};  ///< connection_options::overdue_after
  bool in_place = false;                      ///< arrival::in_place may be used
  /// Messages that were acknowledged to the peer are delivered by link_events::received() even after ended(), because
  /// the peer will not send them again. Only a link with capabilities::completes_on_answer has such messages.
  bool delivers_after_end = false;
};

/// The owner of a key that is being revoked, who keeps the memory until the peer no longer touches it: link::revoke().
class revocation {
 public:
  revocation(const revocation&) = delete;
  revocation& operator=(const revocation&) = delete;

  /// Whether the peer asked for the revocation, other than by an invalidating send, which the link sees itself. A later
  /// access by the key is then a violation, and not merely late.
  [[nodiscard]] virtual bool is_wish_of_peer() const noexcept { return false; }
  /// Yields the pin that keeps the memory's region registered; empty if there is no region. A link that revokes on a
  /// worker takes the pin, and releases it there. Called at most once, inside link::revoke().
  [[nodiscard]] virtual mr::region_pin take_pin() noexcept = 0;
  /// The peer touches the memory no more. Called once, on the thread that called link::revoke(), maybe inside that
  /// call.
  virtual void revoked() noexcept = 0;
  /// Whether the key is revoked because the time until which the memory was lent has passed.
  [[nodiscard]] virtual bool at_deadline() const noexcept { return false; }

 protected:
  revocation() = default;
  ~revocation() = default;
};

/// An access that was refused for its key, its rights or its bounds, and thereby ended a link.
struct refused_access {
  bool is_peers = false;               ///< true: the peer's access to memory of this end; false: ours to the peer's
  std::optional<std::uint64_t> key{};  ///< the key that the access named; empty if the fabric does not tell
};

/// The key and the address by which a peer names memory that is exposed to it.
struct exposed_place {
  /// Makes a place of its two parts.
  exposed_place(std::uint64_t opened, std::uint64_t at) noexcept : key(opened), address(at) {}

  std::uint64_t key;      ///< grants the access
  std::uint64_t address;  ///< of the first byte
  /// The number of the fabric by which the peer finds the place; empty: that of the transport's domain.
  std::optional<std::uint8_t> fabric{};
};

/// Throws errc::not_supported if memory cannot be exposed for `uses`, or if they are none.
inline void check_exposed_uses(mr::usage uses) {
  constexpr mr::usage possible =
      mr::usage::read_src | mr::usage::write_dst | mr::usage::atomic_dst | mr::usage::flush_visibility;
  if (mr::overlaps(uses, ~possible) || uses == mr::usage::none) {
    throw error(errc::not_supported, "expose memory: the possible uses are " + mr::to_string(possible));
  }
}

/// An established connection of a transport. All calls but rails() are made on the thread of its executor, maybe while
/// that executor is between two runs. The order of life: start(), posts, then shut_down() or abort() (or the peer ends
/// it), closed(), destructor; or the destructor alone. See docs/transports.md.
class link {
 public:
  virtual ~link() = default;

  /// The capabilities that both ends share; constant, except that start() may change max_whole_write_bytes.
  [[nodiscard]] virtual const capabilities& properties() const noexcept = 0;
  [[nodiscard]] virtual std::string_view peer() const noexcept = 0;  ///< "10.0.0.7:7471"
  /// The rails of a link that is made of several, for connection::rails(). From any thread.
  [[nodiscard]] virtual std::vector<rail_statistics> rails() const { return {}; }

  /// Starts the link, which calls `events` from now on. Called once, before anything is posted. If it throws, the
  /// caller destroys the link.
  virtual void start(link_events& events, const link_parameters& parameters) = 0;

  /// Bytes that the link needs at work_request::corner; constant.
  [[nodiscard]] virtual std::size_t corner_bytes() const noexcept = 0;
  /// Prepares `corner` of a new request; called after start(), before the request is first posted. The request keeps
  /// its slot for good, and is freed without notice, so whatever is constructed there must be trivially destructible.
  /// False if memory is short, but never for the first 8 requests.
  [[nodiscard]] virtual bool furnish(work_request& work) noexcept = 0;
  /// Queues a request. A link that has ended flushes it.
  virtual void post(work_request& work) noexcept = 0;
  /// Whether the link ever takes requests by take_now(), or messages by take_peeked() or take_arrived(); constant.
  [[nodiscard]] virtual bool takes_at_once() const noexcept { return false; }
  /// The most bytes of a request, without its trailer, for which take_now() is called; constant.
  [[nodiscard]] virtual std::size_t most_at_once() const noexcept { return 0; }
  /// Whether take_now() may be called with a read; if not, it is called only with a send or write.
  [[nodiscard]] virtual bool may_read_at_once() const noexcept { return false; }
  /// Carries out a request of one segment at once, without an event, behind everything posted before. True: the request
  /// is done, and its memory is no longer used; the link may have ended inside the call. False: the request is not done
  /// (a copy may have been cut short), and has to be posted. Called while no request is posted, except the connection's
  /// own messages. `work` has no slot and no corner.
  [[nodiscard]] virtual bool take_now([[maybe_unused]] const work_request& work) noexcept { return false; }
  /// Finds where the peer's memory is mapped in this process. The place is valid while direct_gate::version stays the
  /// same, and may be used only inside a loan_visit. The caller copies, and keeps the order of operations.
  [[nodiscard]] virtual direct_place find_direct([[maybe_unused]] std::uint64_t key,
                                                 [[maybe_unused]] std::uint64_t address,
                                                 [[maybe_unused]] std::uint64_t bytes) noexcept {
    return {};
  }
  /// The gate of the link's direct places; null if find_direct() never finds any.
  [[nodiscard]] virtual const direct_gate* gate() const noexcept { return nullptr; }
  /// The next message that has arrived since the executor's last turn, if it is whole in the link's memory and nothing
  /// is due before it; otherwise empty. Called when a task asks for a message, and no event has reported one. Valid
  /// until the next call to the link.
  [[nodiscard]] virtual untaken_message peek_message() noexcept { return {}; }
  /// Takes the message that peek_message() has just yielded, without a receive and without an event.
  virtual void take_peeked([[maybe_unused]] const untaken_message& peeked) noexcept {}
  /// Lets the link receive what has arrived since the executor's last turn, if that costs no system call.
  virtual void take_arrived() noexcept {}
  /// Whether the link takes lists whole, by post_run(). Asked after start(), before each list is posted; may allocate
  /// the first time. By default false: each element is posted as a request.
  [[nodiscard]] virtual bool takes_runs() noexcept { return false; }
  /// Queues elements of a run, in order, behind what was posted before. Only after takes_runs() has returned true.
  /// Elements and requests together are never more than link_parameters::send_depth.
  virtual void post_run([[maybe_unused]] work_run& run, [[maybe_unused]] const run_portion& what) noexcept {}
  /// Queues a receive; never called on a link with set_up_options::receives. If there are
  /// set_up_options::first_receives, these are the first to be posted, in their order.
  virtual void post_receive(receive_work& work) noexcept = 0;
  /// Starts what was posted since the last call: one doorbell for many requests.
  virtual void ring() noexcept = 0;

  /// Sends what was posted, then announces to the peer that no more follows; closed() comes once the peer has done the
  /// same.
  virtual void shut_down() noexcept = 0;
  /// Tells the link that its peer, which is weft, has sent the last message. Called before shut_down() or after it.
  virtual void peer_finished() noexcept {}
  /// Ends the link now; ended(), the flushes and closed() follow as far as they have not been called yet, maybe from
  /// inside this call. May be called again, even after closed().
  virtual void abort(std::string_view why) noexcept = 0;
  /// How the peer has broken the rules of the protocol above the link.
  enum class violation : std::uint8_t {
    too_long,  ///< it sent a message larger than this end receives
    revoking,  ///< it asked to revoke a key that this link has not given it
    other,
  };
  /// Like abort(), because of a violation. A transport that can do so reports the violation to the peer.
  virtual void refuse([[maybe_unused]] violation what, std::string_view why) noexcept { abort(why); }

  /// How many bytes the peer's machine is known to have taken in all, of a link without
  /// capabilities::completes_on_answer. The number grows as long as the network makes progress, whatever the peer's
  /// program does. Empty if unknown.
  [[nodiscard]] virtual std::optional<std::uint64_t> taken_bytes() noexcept { return std::nullopt; }

  /// Whether the device or the network may be at fault for the link's end, and not the peer, so that another link to
  /// the same peer may go on. Asked after an end with errc::connection_failed or errc::protocol_error.
  [[nodiscard]] virtual bool may_have_failed_alone() const noexcept { return false; }

  /// The largest key of this transport; operations on memory of the peer's with a larger key are refused. Constant.
  [[nodiscard]] virtual std::uint64_t largest_key() const noexcept { return UINT32_MAX; }

  /// Opens `memory` to the peer for `uses`, by a key that is usable through this link only, and yields the key and the
  /// peer's address for it. The caller keeps the memory and the slice's registration until this task has ended and the
  /// key is revoked. `gate` belongs to the region that `memory` is a part of, and lives until then; null if there is no
  /// region.
  virtual task<exposed_place> expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) = 0;
  /// Revokes the key, and calls who.revoked() once the peer no longer touches the memory: before closed(), or at once
  /// if the link has closed. On some devices this blocks, so a worker may do it. Called once for each key.
  virtual void revoke(std::uint64_t key, revocation& who) noexcept = 0;
  /// The refused access that has ended the link; empty if the cause was another. From link_events::ended() on.
  [[nodiscard]] virtual std::optional<refused_access> refusal() const noexcept { return std::nullopt; }
};

/// A shared receive queue for the links of one executor; each message fills the oldest receive. All calls are made on
/// that executor. The queue must outlive its links. A receive that a link has taken ends in received() or
/// receive_flushed() of that link; a receive that no link has taken ends with the queue. A set-up keeps the queue, and
/// with it the receives' memory, until its peer can no longer write there. See ibv_create_srq(3).
class receive_queue {
 public:
  virtual ~receive_queue() = default;
  /// Posts a receive; no more at a time than the queue's depth. `work` belongs to the caller, as for
  /// link::post_receive().
  virtual void post(receive_work& work) noexcept = 0;
};

struct own_receives;

/// Options of a set-up.
struct set_up_options {
  std::chrono::steady_clock::time_point deadline;  ///< of the whole set-up
  std::span<const std::byte> private_data;         ///< for the peer
  std::uint16_t max_requests = 0;                  ///< upper bound of link_parameters::send_depth
  std::uint16_t max_receives = 0;                  ///< upper bound of link_parameters::receive_depth
  std::uint16_t incoming_reads = 16;               ///< reads that the peer may have outstanding here (IRD)
  std::uint16_t outgoing_reads = 16;               ///< reads that this end may have outstanding at the peer (ORD)
  std::chrono::milliseconds dead_peer_after{};     ///< the link ends after such a silence of the peer's machine
  bool interop = false;                            ///< the peer may implement only the standard's first revision
  bool persistent_flush = false;                   ///< connection_options::persistent_flush
  std::shared_ptr<receive_queue> receives;         ///< shared, of the same transport; null: those of post_receive()
  /// The receives that will be posted first. The set-up may already post them to its device, for a peer that sends
  /// before this end has learned that the link is established. The set-up then keeps their memory until nobody can
  /// write there.
  std::shared_ptr<own_receives> first_receives;
  std::string_view source{};                    ///< connection_options::source
  std::optional<std::uint8_t> traffic_class{};  ///< connection_options::traffic_class
  mr::pool* pool = nullptr;                     ///< the device's pool, for transports with messages of their own
  std::size_t receive_bytes = 0;                ///< size of each receive that will be posted
  /// How long a link over rails waits for a new rail once all are lost. Zero: not at all.
  std::chrono::milliseconds resume_within{};
  std::size_t max_peer_exposures = 65536;  ///< connection_options::max_peer_exposures
  bool may_go_elsewhere = false;           ///< another fabric is tried next, so do not wait long for a busy listener
};

/// An established link with the peer's private data.
struct new_link {
  std::unique_ptr<net::link> link;           ///< the link
  std::vector<std::byte> peer_private_data;  ///< the private data that the peer sent with its set-up
  std::size_t fabric = 0;                    ///< index of the fabric in its device, which fills it in
  std::string passed_over{};                 ///< why no earlier fabric carries the link: connection::passed_over()

  /// A link over the device's first fabric.
  new_link(std::unique_ptr<net::link> established, std::vector<std::byte> data) noexcept
      : link(std::move(established)), peer_private_data(std::move(data)) {}
};

/// Where a peer comes from, as far as it cannot choose that: its network, or its user or process over shared memory.
using peer_origin = std::array<std::byte, 8>;

/// A peer that wants to connect. Destroying an unanswered request rejects the peer.
class link_request {
 public:
  virtual ~link_request() = default;

  std::size_t fabric = 0;  ///< index of the fabric in its device, which fills it in
  /// Where the peer comes from, set by the listener. When places are short, the origin with the most of them loses one:
  /// peer_to_evict().
  peer_origin origin{};

  /// "10.0.0.7:40112"
  [[nodiscard]] virtual std::string_view peer() const noexcept = 0;
  /// The private data that the peer sent with its request.
  [[nodiscard]] virtual std::span<const std::byte> private_data() const noexcept = 0;

  /// Establishes the link on the caller's executor, and yields it; either end may send first.
  virtual task<std::unique_ptr<link>> accept(const set_up_options& options) = 0;
  /// Rejects the peer, and sends it `private_data`.
  virtual task<> reject(std::span<const std::byte> private_data) = 0;
};

struct set_up_statistics;

/// Takes requests that are not for the listening program, such as rails that join a connection.
class request_filter {
 public:
  /// Takes a request that is not for the listening program. True: it was taken, and `request` is null. Called on the
  /// listening executor.
  [[nodiscard]] virtual bool takes(std::unique_ptr<link_request>& request) noexcept = 0;
  /// Whether a request that takes() would take may still arrive. It becomes true before a request is handed out whose
  /// connection such requests may join. From any thread.
  [[nodiscard]] virtual bool expects_peers() const noexcept = 0;

 protected:
  ~request_filter() = default;
};

/// Options of a listener.
struct listen_options {
  std::chrono::milliseconds set_up_timeout{};  ///< how long a peer may take to send its request
  /// The most peers that have connected and were not handed out; up to an eighth more while the filter expects peers.
  std::size_t max_half_open = 0;
  std::optional<std::uint8_t> traffic_class{};  ///< listener_options::traffic_class
  /// Counts half-open peers, failed requests and errors. Must be set, and must outlive the listening executor.
  set_up_statistics* counts = nullptr;
  /// Asked about each request as soon as it has arrived, whether or not anybody waits in link_listener::next(). Null if
  /// there is no filter. Must outlive the listening executor.
  request_filter* filter = nullptr;
};

/// Yields the peers that ask for a connection. next() is called on the listening executor, all else on any thread.
class link_listener {
 public:
  virtual ~link_listener() = default;  ///< closes

  [[nodiscard]] virtual std::string_view address() const noexcept = 0;  ///< with the port that was chosen
  /// The next request, or null after close(). The listener may be destroyed before the task begins.
  virtual task<std::unique_ptr<link_request>> next() = 0;
  /// Stops listening, and rejects the requests that next() has not yielded. Does nothing the second time.
  virtual void close() noexcept = 0;
};

/// The prefix that distinguishes an address "unix:PATH" from "HOST:PORT".
inline constexpr std::string_view unix_path_prefix = "unix:";

/// A transport, which connects and listens: one object for each fabric of an opened device.
class transport {
 public:
  virtual ~transport() = default;

  /// The fabric's name: "iwarp", "verbs:mlx5_0".
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// The domain in which memory is registered for this transport.
  [[nodiscard]] virtual const std::shared_ptr<mr::domain>& shared_domain() const noexcept = 0;
  /// All domains: one for each transport that this one is made of.
  [[nodiscard]] virtual std::vector<std::shared_ptr<mr::domain>> domains() const { return {shared_domain()}; }
  /// Shorthand for *shared_domain().
  [[nodiscard]] mr::domain& domain() const noexcept { return *shared_domain(); }
  /// The features of its links, of which a connection uses those that a weft peer has as well.
  [[nodiscard]] virtual native_features features() const noexcept = 0;
  /// Whether a connection with this connection_options::resume_within uses several links, at once or one after another,
  /// if the peer's end does so too.
  [[nodiscard]] virtual bool has_rails(std::chrono::milliseconds /*resume_within*/) const noexcept { return false; }
  /// The features that a connection with this connection_options::resume_within announces to its peer.
  [[nodiscard]] native_features features_of(std::chrono::milliseconds resume_within) const noexcept {
    native_features all = features();
    all.rails = has_rails(resume_within);
    all.resumes = all.rails && resume_within.count() > 0;
    return all;
  }
  /// The byte at which weft peers may probe whether this end is alive; valid for the transport's lifetime.
  [[nodiscard]] virtual landing_place landing() const noexcept { return {}; }
  /// Whether an accepted link sends nothing before the peer's first message (RFC 5044 section 7.1.2, rule 4), because
  /// nothing else shows that the peer is ready to receive.
  [[nodiscard]] virtual bool listens_first() const noexcept { return false; }
  /// Whether this transport has ports of its own, which no other transport's listener can take: a port in use is then
  /// in use by another listener of this transport.
  [[nodiscard]] virtual bool has_own_ports() const noexcept { return false; }

  /// Adds the statistics of its links' rails, lost ones included, to the entries of their fabrics in `all`; from any
  /// thread.
  virtual void add_rails([[maybe_unused]] std::vector<fabric_rail_statistics>& all) const {}

  /// Whether the address has a form that this transport accepts; if not, the transport is not tried.
  [[nodiscard]] virtual bool understands(std::string_view address) const noexcept {
    return !address.starts_with(unix_path_prefix) && address.find('+') == std::string_view::npos;
  }

  /// Connects. Throws weft::error whose text names the step that failed.
  virtual task<new_link> connect(std::string_view address, const set_up_options& options) = 0;
  /// Listens. Throws weft::error whose text names the step that failed.
  virtual task<std::unique_ptr<link_listener>> listen(std::string_view address, const listen_options& options) = 0;

  /// Makes a shared receive queue of at most `depth` receives, for links on the executor that awaits the task. By
  /// default the call itself throws errc::not_supported.
  virtual task<std::unique_ptr<receive_queue>> share_receives(std::uint16_t /*depth*/) {
    throw error(errc::not_supported, "this transport has no shared receive queues");
  }
};

}  // namespace weft::net
