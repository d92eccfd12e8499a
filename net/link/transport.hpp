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
#include <weft/net/link/native_features.hpp>
#include <weft/net/link/peer_names.hpp>
#include <weft/net/link/work_run.hpp>
#include <weft/net/statistics.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/result.hpp>
#include <weft/runtime/task.hpp>

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
/// The one interface between net and a transport. A connection sees a link; a transport sees work to do.

namespace weft::net {

/// Pieces of one request: the user's, and one for the message trailer.
inline constexpr std::size_t max_segments = 8;

/// The alignment, in bytes, of what a link keeps in a request.
inline constexpr std::size_t corner_alignment = 8;

/// What a link is asked to do.
enum class work_kind : std::uint8_t { send, write, read, fetch_add, compare_swap };

/// One posted operation, as a transport sees it. It belongs to the connection and stays, with the memory that
/// it names, from link::post() until link_events::completed().
struct work_request {
  std::uint16_t slot = 0;                    ///< its place in the connection's table: below link_parameters::send_depth
  work_kind kind = work_kind::send;          ///< what is to be done
  bool solicited = false;                    ///< sends and immediate data: the peer may raise an event
  std::optional<std::uint32_t> immediate{};  ///< writes: comes to the peer in their wake, as a message
  std::optional<std::uint64_t> invalidate{};  ///< sends: the peer's key to revoke
  std::uint64_t remote_key = 0;               ///< of writes, reads and atomics: the peer's key
  std::uint64_t remote_address = 0;           ///< and where in its memory
  /// Where native_features::rails is agreed: what each fabric of the peer's device calls that memory.
  std::span<const named_place> names{};
  bool listed = false;        ///< where there are names: of a list, whose elements may go over different rails
  std::uint64_t operand = 0;  ///< of atomics: what to add, or to put there
  std::uint64_t compare = 0;  ///< compare_swap: what has to be there
  /// Local memory, registered with the transport's domain: mr::memory_record::in() has what that knows of it. Whether
  /// the processor may touch it is for slice::kind() to say.
  std::span<const mr::slice> segments{};
  /// A few bytes of the request's own, in no registration: of a send what goes out behind the segments; of a read
  /// without segments and of atomics, which have none, where the answer goes (of atomics eight bytes, in this machine's
  /// byte order).
  std::span<std::byte> own{};
  void* corner = nullptr;  ///< the link's own part of it: link::corner_bytes()
};

/// Elements of a work_run that are posted together.
struct run_portion {
  std::size_t first = 0;                     ///< the place of the first one in the run
  std::size_t count = 0;                     ///< how many there are; not 0
  work_kind kind = work_kind::write;         ///< write or read
  std::optional<std::uint32_t> immediate{};  ///< writes: comes to the peer in the wake of the last of them
  bool solicited = false;                    ///< immediate data: the peer may raise an event
};

/// One posted receive, likewise, until received() or receive_flushed().
struct receive_work {
  std::uint16_t slot = 0;  ///< below link_parameters::receive_depth
  mr::slice memory;        ///< where the message goes
};

/// What has come into a receive.
struct arrival {
  std::size_t bytes = 0;                           ///< of the message
  bool solicited = false;                          ///< the peer asks for attention
  std::optional<std::uint64_t> invalidated_key{};  ///< a key of this end that the message has revoked
  std::optional<std::uint32_t> immediate{};        ///< in the wake of a write; nothing is in the buffer then
};

/// How a request ended.
enum class work_status : std::uint8_t {
  done,
  flushed,        ///< the link ended first; the peer may have executed it all the same
  access_denied,  ///< the peer refused it, which ended the link
  bystander,      ///< flushed, because the peer refused an access by another key
  unknown,        ///< the peer may have executed it, which cannot be found out or done again; the link goes on
  taken_back,     ///< the peer refused it, because it had taken its memory back; the link goes on
  expired,        ///< the same: the memory was lent until a time that had passed
};

/// What a link tells its connection. Called on the executor that owns both, from whatever the link does in its turns or
/// from inside a call to the link, but not from link::start(). Each may call back into the link, and may post again
/// what it is told of; only closed() may destroy the link.
class link_events {
 public:
  /// Every posted request, exactly once, in posting order.
  virtual void completed(work_request& work, work_status status) noexcept = 0;
  /// The oldest `count` elements of the run that were posted and have not ended have ended like that, in posting order
  /// with the requests. Each exactly once; `count` is 1 for a status that is neither done nor flushed.
  virtual void run_advanced([[maybe_unused]] work_run& run, [[maybe_unused]] std::size_t count,
                            [[maybe_unused]] work_status status) noexcept {}
  /// A message lies in the buffer of the oldest receive.
  virtual void received(receive_work& work, const arrival& what) noexcept = 0;
  /// The receive will get no message, because the link has ended.
  virtual void receive_flushed(receive_work& work) noexcept = 0;
  /// The peer, which is not weft, has finished sending, between messages, and takes what is sent to it until
  /// shut_down(); at most once. No link has to tell of that.
  virtual void input_over() noexcept {}
  /// The link has ended; once, before anything is flushed. `orderly`: the peer has finished sending, between messages
  /// and with nothing outstanding. Else `why` is the reason, without naming the peer.
  virtual void ended(bool orderly, const error& why) noexcept = 0;
  /// Everything has been completed and flushed and the link touches no memory any more.
  virtual void closed() noexcept = 0;
  /// The peer has used a key of this end that had been taken back, and was refused; the link goes on.
  virtual void came_late([[maybe_unused]] std::uint64_t key, [[maybe_unused]] exposure_end how) noexcept {}

 protected:
  ~link_events() = default;
};

/// What a connection tells its link before the first post.
struct link_parameters {
  std::uint16_t send_depth = 0;               ///< requests posted at a time, at most
  std::uint16_t receive_depth = 0;            ///< likewise of receives
  bool native = false;                        ///< the peer is weft as well
  native_features agreed{};                   ///< with such a peer
  landing_place landing{};                    ///< of such a peer's transport
  std::chrono::milliseconds overdue_after{};  ///< connection_options::overdue_after
  /// Messages that the peer has been told of as arrived come by link_events::received() also after ended(), because
  /// nobody will send them again. Only a link with capabilities::completes_on_answer has such messages.
  bool delivers_after_end = false;
};

/// The owner of a key that is being revoked, who keeps the memory until the peer no longer touches it: link::revoke().
class revocation {
 public:
  revocation(const revocation&) = delete;
  revocation& operator=(const revocation&) = delete;

  /// Whether the peer itself has asked for it: an access by that key is its violation from then on, and not late.
  [[nodiscard]] virtual bool is_wish_of_peer() const noexcept { return false; }
  /// What keeps the region of the memory registered, if there is one: a link that leaves the work to a worker takes it,
  /// and lets it go there. At most once, from inside link::revoke().
  [[nodiscard]] virtual mr::region_pin take_pin() noexcept = 0;
  /// The peer touches the memory no more. Once, on the thread that called link::revoke(), maybe from inside that call.
  virtual void revoked() noexcept = 0;
  /// Whether the time has come until which the memory was lent.
  [[nodiscard]] virtual bool at_deadline() const noexcept { return false; }

 protected:
  revocation() = default;
  ~revocation() = default;
};

/// An access that was refused for its key, its rights or its bounds, which has ended a link.
struct refused_access {
  bool is_peers = false;               ///< of the peer's, to memory of this end; else of this end's, to the peer's
  std::optional<std::uint64_t> key{};  ///< the one that it named; empty if the fabric does not tell
};

/// How a peer names what has been opened to it.
struct exposed_place {
  /// The key and the address together.
  exposed_place(const mr::remote_key& opened, std::uint64_t at) noexcept : key(opened), address(at) {}

  mr::remote_key key;     ///< what allows the access
  std::uint64_t address;  ///< of the first byte
};

/// An established connection of a transport. All calls on the thread of its executor, which may be between two runs.
/// The order of life: start(), posts, then shut_down() or abort() (or the peer ends it), closed(), destructor; or the
/// destructor alone. See docs/transports.md.
class link {
 public:
  virtual ~link() = default;

  /// What both ends can do together.
  [[nodiscard]] virtual const capabilities& properties() const noexcept = 0;
  [[nodiscard]] virtual std::string_view peer() const noexcept = 0;  ///< "10.0.0.7:7471"
  /// connection::rails(), of a link that is made of several; from any thread.
  [[nodiscard]] virtual std::vector<rail_statistics> rails() const { return {}; }

  /// Has `events` told from now on; once, before anything is posted.
  virtual void start(link_events& events, const link_parameters& parameters) = 0;

  /// How much room the link wants in each request for itself; constant.
  [[nodiscard]] virtual std::size_t corner_bytes() const noexcept = 0;
  /// A request has been made, with room at `corner`, which goes without another word: after start(), before it is
  /// posted for the first time. Its slot is its for good. False if memory is short, but never for the first 8.
  [[nodiscard]] virtual bool furnish(work_request& work) noexcept = 0;
  /// Queues a request. On a link that has ended it is flushed.
  virtual void post(work_request& work) noexcept = 0;
  /// Whether the link takes lists apart by itself. Asked after start(), for each list before it is posted; may allocate
  /// the first time. By default it does not, and each element is a request.
  [[nodiscard]] virtual bool takes_runs() noexcept { return false; }
  /// Queues elements, in their order behind what was posted before, if takes_runs() has said so. Elements and requests
  /// together are never more than link_parameters::send_depth.
  virtual void post_run([[maybe_unused]] work_run& run, [[maybe_unused]] const run_portion& what) noexcept {}
  /// Not for a link with set_up_options::receives. The first receives are set_up_options::first_receives, in their
  /// order, if there are any.
  virtual void post_receive(receive_work& work) noexcept = 0;
  /// Hands over what was posted since the last call: one doorbell for many requests.
  virtual void ring() noexcept = 0;

  /// Sends what was posted, then says that no more will come; closed() follows once the peer has done so as well.
  virtual void shut_down() noexcept = 0;
  /// The peer, which is weft, has said that it will send no more; before shut_down() or after it.
  virtual void peer_finished() noexcept {}
  /// Ends the link now; ended(), the flushes and closed() follow, maybe from inside this call.
  virtual void abort(std::string_view why) noexcept = 0;
  /// How the peer has broken the rules of the protocol above the link.
  enum class violation : std::uint8_t {
    too_long,  ///< a message larger than may be received here
    revoking,  ///< it asked to revoke a key that this link has not given it
    other,
  };
  /// Like abort(), because of a violation: a transport that can tells the peer.
  virtual void refuse([[maybe_unused]] violation what, std::string_view why) noexcept { abort(why); }

  /// Of a link without capabilities::completes_on_answer: how many bytes the peer's machine is known to have taken,
  /// ever. It grows for as long as the network moves, whatever the peer's program does. Empty if nobody can tell.
  [[nodiscard]] virtual std::optional<std::uint64_t> taken_bytes() noexcept { return std::nullopt; }

  /// Whether errc::connection_failed or errc::protocol_error, with which it has ended, may be no fault of the peer's
  /// but of the device or the network: then another link to the same peer may go on.
  [[nodiscard]] virtual bool may_have_failed_alone() const noexcept { return false; }

  /// The largest number that can be a key of this transport; constant.
  [[nodiscard]] virtual std::uint64_t largest_key() const noexcept { return UINT32_MAX; }
  /// A number for work_request::remote_key that stands for a key of the peer that is not a number. By default
  /// errc::not_supported: all keys of the transport are numbers.
  [[nodiscard]] virtual result<std::uint64_t> import_key([[maybe_unused]] const mr::remote_key& blob) noexcept {
    return weft::detail::make_error(errc::not_supported, "this fabric's keys are numbers, but the peer's key is not");
  }

  /// Gives the peer a key to `memory`, for `uses` and usable through this link only, and yields how the peer says it.
  /// The caller keeps the registration that the slice is of, and the memory, until this has ended and the key is
  /// revoked. `gate` is that of the region whose window it is, and stays as long; null: it is no region's.
  [[nodiscard]] virtual task<exposed_place> expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) = 0;
  /// Revokes the key, and calls who.revoked() once the peer no longer touches the memory: before closed(), or at once
  /// if the link has closed. Devices block for that, so that a worker may do it. Each key once.
  virtual void revoke(const mr::remote_key& key, revocation& who) noexcept = 0;
  /// What has ended the link, if it was a refused access; from link_events::ended() on.
  [[nodiscard]] virtual std::optional<refused_access> refusal() const noexcept { return std::nullopt; }
};

/// Receives that the links of one executor draw from, each message the oldest. All calls on that executor. It outlives
/// its links, which hand back what they have taken: each receive ends in received() or receive_flushed() of the link
/// that took it, and what none has taken ends with the queue. A set-up keeps it, and the receives' memory with it,
/// until no peer of its can write there. See ibv_create_srq(3).
class receive_queue {
 public:
  virtual ~receive_queue() = default;
  /// No more at a time than its depth. `work` belongs to the caller, as for link::post_receive().
  virtual void post(receive_work& work) noexcept = 0;
};

struct own_receives;

/// What a set-up needs to know.
struct set_up_options {
  std::chrono::steady_clock::time_point deadline;  ///< of the whole set-up
  std::span<const std::byte> private_data;         ///< for the peer
  std::uint16_t max_requests = 0;                  ///< link_parameters::send_depth will not be more than that
  std::uint16_t max_receives = 0;                  ///< nor receive_depth than that
  std::uint16_t incoming_reads = 16;               ///< reads that the peer may have outstanding here (IRD)
  std::uint16_t outgoing_reads = 16;               ///< and we there (ORD)
  std::chrono::milliseconds dead_peer_after{};     ///< silence of the peer's machine that ends the link
  bool interop = false;                            ///< the peer may know no more than the standard's first revision
  std::shared_ptr<receive_queue> receives;         ///< of the same transport; else link::post_receive() is used
  /// What will be posted first. The set-up may have its device fill them already, for a peer that speaks before this
  /// end has heard that the link is there; it keeps their memory until nobody can write there.
  std::shared_ptr<own_receives> first_receives;
  std::string_view source{};                    ///< connection_options::source
  std::optional<std::uint8_t> traffic_class{};  ///< connection_options::traffic_class
  mr::pool* pool = nullptr;                     ///< of the device, for transports that receive messages of their own
  std::size_t receive_bytes = 0;                ///< of each receive that will be posted
  /// How long a link of several rails waits for one of them once all are lost. Zero: not at all.
  std::chrono::milliseconds resume_within{};
  std::size_t max_peer_exposures = 65536;  ///< connection_options::max_peer_exposures
  bool may_go_elsewhere = false;           ///< another fabric is tried next: no long wait for a listener that is busy
};

/// An established link with what the peer said to it.
struct new_link {
  std::unique_ptr<net::link> link;           ///< the link
  std::vector<std::byte> peer_private_data;  ///< what the peer sent with its set-up
  std::size_t fabric = 0;                    ///< of its device's; for the device to say
  std::string passed_over{};                 ///< why it is none of those before: connection::passed_over()

  /// A link over the device's first fabric.
  new_link(std::unique_ptr<net::link> established, std::vector<std::byte> data) noexcept
      : link(std::move(established)), peer_private_data(std::move(data)) {}
};

/// A peer that wants to connect. Destroying it unanswered rejects it.
class link_request {
 public:
  virtual ~link_request() = default;

  std::size_t fabric = 0;  ///< of its device's; for the device to say

  /// "10.0.0.7:40112"
  [[nodiscard]] virtual std::string_view peer() const noexcept = 0;
  /// What the peer sent with its request.
  [[nodiscard]] virtual std::span<const std::byte> private_data() const noexcept = 0;

  /// Establishes the link, on the executor of the caller, and yields it; the peer may speak first or last.
  [[nodiscard]] virtual task<std::unique_ptr<link>> accept(const set_up_options& options) = 0;
  /// Refuses the peer, and tells it `private_data`.
  [[nodiscard]] virtual task<> reject(std::span<const std::byte> private_data) = 0;
};

struct set_up_statistics;

/// Takes requests that are not for the program that listens. On the executor that listens.
class request_filter {
 public:
  /// True if it has taken the request, which is null then.
  [[nodiscard]] virtual bool takes(std::unique_ptr<link_request>& request) noexcept = 0;
  /// Whether a peer may come whose request it would take. From any thread. From before a request that may bring that
  /// about has been handed out.
  [[nodiscard]] virtual bool expects_peers() const noexcept = 0;

 protected:
  ~request_filter() = default;
};

/// What a listener does with those that ask for a connection.
struct listen_options {
  std::chrono::milliseconds set_up_timeout{};   ///< for a peer to send its request
  std::size_t max_half_open = 0;                ///< peers that have connected and were not handed out, at most
  std::optional<std::uint8_t> traffic_class{};  ///< listener_options::traffic_class
  /// Where half-open peers, requests that failed and errors are counted; it outlives the executor that listens.
  set_up_statistics* counts = nullptr;
  /// Asked of each request as soon as it is in, whether or not anybody waits in link_listener::next(). Null: there is
  /// none. It outlives the executor that listens.
  request_filter* filter = nullptr;
};

/// Where peers come in. next() on the executor that listens, all else from any thread.
class link_listener {
 public:
  virtual ~link_listener() = default;  ///< closes

  [[nodiscard]] virtual std::string_view address() const noexcept = 0;  ///< with the port that was chosen
  /// The next request, or null after close(). The listener may go before the task begins.
  [[nodiscard]] virtual task<std::unique_ptr<link_request>> next() = 0;
  /// Takes no more requests. Does nothing the second time.
  virtual void close() noexcept = 0;
};

/// What an address that is "unix:PATH", and not "HOST:PORT", begins with.
inline constexpr std::string_view unix_path_prefix = "unix:";

/// A way to reach peers: one object for each opened device.
class transport {
 public:
  virtual ~transport() = default;

  /// The fabric's name: "iwarp", "verbs:mlx5_0".
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// Where memory is registered for it.
  [[nodiscard]] virtual const std::shared_ptr<mr::domain>& shared_domain() const noexcept = 0;
  /// All of them, of a transport that is made of several.
  [[nodiscard]] virtual std::vector<std::shared_ptr<mr::domain>> domains() const { return {shared_domain()}; }
  /// The same.
  [[nodiscard]] mr::domain& domain() const noexcept { return *shared_domain(); }
  /// What its links can do between weft peers, if the other end can as well.
  [[nodiscard]] virtual native_features features() const noexcept = 0;
  /// Whether a connection with that connection_options::resume_within has several links, one beside the other or one
  /// after the other, if the peer's end has as well.
  [[nodiscard]] virtual bool has_rails(std::chrono::milliseconds /*resume_within*/) const noexcept { return false; }
  /// What a connection with that connection_options::resume_within tells its peer.
  [[nodiscard]] native_features features_of(std::chrono::milliseconds resume_within) const noexcept {
    native_features all = features();
    all.rails = has_rails(resume_within);
    all.resumes = all.rails && resume_within.count() > 0;
    return all;
  }
  /// Where weft peers may ask this end for signs of life; for as long as the transport is there.
  [[nodiscard]] virtual landing_place landing() const noexcept { return {}; }
  /// Whether a link that was accepted sends nothing before it has received a message (RFC 5044 section 7.1.2, rule 4,
  /// where the transport cannot tell otherwise that the peer may be sent to).
  [[nodiscard]] virtual bool listens_first() const noexcept { return false; }
  /// Whether no other transport's listener takes a port from this one's, so that where one is taken another listener
  /// of this transport has it.
  [[nodiscard]] virtual bool has_own_ports() const noexcept { return false; }

  /// Adds what the rails of its links are doing, and have done, to those of the same fabrics in `all`; from any thread.
  virtual void add_rails([[maybe_unused]] std::vector<fabric_rail_statistics>& all) const {}

  /// Whether such an address may be one of this transport's: one that takes another form is not tried.
  [[nodiscard]] virtual bool understands(std::string_view address) const noexcept {
    return !address.starts_with(unix_path_prefix) && address.find('+') == std::string_view::npos;
  }

  /// Throws weft::error whose words name the step that failed.
  [[nodiscard]] virtual task<new_link> connect(std::string_view address, const set_up_options& options) = 0;
  /// Listens. Throws weft::error whose words name the step that failed.
  [[nodiscard]] virtual task<std::unique_ptr<link_listener>> listen(std::string_view address,
                                                                    const listen_options& options) = 0;

  /// For links on the executor that awaits this, with at most so many receives.
  [[nodiscard]] virtual task<std::unique_ptr<receive_queue>> share_receives(std::uint16_t /*depth*/) {
    throw error(errc::not_supported, "this transport has no shared receive queues");
  }
};

}  // namespace weft::net
