// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kit/standard.hpp"
#include "world.hpp"

// What a run does: connections, what their ends do with them, and what is done to them. Plain data, so that a run that
// fails can be cut down and written out.
namespace weft::sim {

enum class action : std::uint8_t {
  send,
  write,
  write_and_tell,  ///< a write with immediate data
  read,
  flush,
  add,         ///< fetch_add on a word of the lane's own
  add_all,     ///< fetch_add of 1 on a word that all lanes share
  swap,        ///< compare_swap on a word of the lane's own
  batch,       ///< several writes, sends and reads, with one doorbell
  list,        ///< many small writes that are one operation, maybe with immediate data at the end
  exposure,    ///< of a buffer of the peer's: written, read, and taken back
  window,      ///< the same with a part of a region of the peer's
  own_region,  ///< registered for one write, and released
  pause,
};

/// Whose memory an operation gets.
enum class lending : std::uint8_t {
  moved,     ///< buffer&&
  pinned,    ///< buffer&
  borrowed,  ///< a slice of a region
  gathered,  ///< several slices of it
};

struct step {
  action what = action::send;
  lending memory = lending::moved;
  std::uint32_t bytes = 0;
  std::uint32_t offset = 0;         ///< in the lane's part of the peer's memory
  bool immediate = false;           ///< of a send
  std::uint32_t count = 1;          ///< of a batch, or a list; of what the peer shall yet do with an exposure
  std::uint32_t stop_after_us = 0;  ///< 0: it is not stopped
};

/// A task that uses one end, a step after the other.
struct lane {
  bool of_client = true;
  std::uint32_t home = 0;                ///< the executor of the task, which may be another than that of its end; it
                                         ///< allocates and stops there, and has the rest done where it may be done
  std::uint32_t destroyed_after_us = 0;  ///< 0: it ends by itself
  std::vector<step> steps{};
};

struct side_options {
  std::uint32_t receive_size = 4096;
  std::uint16_t receive_depth = 16;
  std::uint16_t send_depth = 64;
  std::uint16_t reads = 16;
  bool share_receives = false;
  std::uint32_t receive_pause_us = 0;  ///< between two calls of recv()
  std::uint32_t receive_stop_us = 0;   ///< a recv() is stopped after so long, and another one follows; 0: never
  std::uint32_t keep = 0;              ///< how many messages it keeps before it lets them go
  bool direct = false;                 ///< in shared memory: its memory is the peer's to use by itself,
  bool direct_windows = false;         ///< and so are windows
  std::uint32_t resume_within_ms = 0;  ///< of a connection of several rails
};

enum class ending : std::uint8_t {
  client_closes,
  server_closes,
  both_close,
  client_drops,
  server_drops,
  client_aborts,
  server_aborts,
  beyond_bounds,   ///< the client writes where the server's region has ended
  without_right,   ///< the client writes to what the server lets it read
  foreign_key,     ///< the client writes to what the server has exposed to another connection
  revoked_key,     ///< the client writes to what the server has taken back
  server_forgets,  ///< as one that was started anew: it listens, and knows nothing of the connection. Of rails alone
};

/// What the client does to memory that it uses by itself, at the end of a connection: in shared memory, instead of its
/// ending.
enum class overstepping : std::uint8_t {
  none,
  of_window,  ///< it goes on when the server has revoked what it had exposed
  of_region,  ///< likewise, when it has released it
  of_rights,  ///< it writes what it may only read
};

enum class fault_kind : std::uint8_t {
  reset,
  cut,
  stall,
  client_send_fails,
  server_send_fails,
  damage,  ///< a bit changes on the way
};

struct fault {
  fault_kind what = fault_kind::reset;
  std::uint32_t after_us = 0;  ///< of the start of the connection; with several rails, of its first operation
  // Of a connection of several rails.
  std::uint32_t rail = 0;
  std::uint32_t lasts_us = 0;  ///< a cut or a stall; a cut of 0: for good
};

/// What a rail goes over.
enum class rail_kind : std::uint8_t { tcp, rdma };

struct meeting_plan {
  std::uint32_t start_us = 0;
  std::uint32_t client_home = 0;  ///< the executor of this end, and of what looks after the whole
  std::uint32_t server_home = 0;
  bool pass_on = false;  ///< what has been received is let go by another executor
  side_options client;
  side_options server;
  bool eager = false;               ///< the client sends before it knows whether the server has heard of it
  std::uint32_t area_bytes = 1024;  ///< of each lane's part of the peer's memory
  std::vector<lane> lanes{};
  std::vector<fault> faults{};
  ending how = ending::client_closes;
  std::uint32_t end_after_us = 0;  ///< in the middle of everything; 0: once all lanes have ended
  bool settles = false;            ///< all its rails are there before anything is done
  // In shared memory alone.
  overstepping oversteps = overstepping::none;
  std::uint32_t overstepped_bytes = 4096;  ///< of that memory, a multiple of 8
  std::uint32_t overstepped_after_us = 0;  ///< so long the client may use it
  std::uint32_t dies_in_loan = 0;          ///< in which call from the first loan on; 0: in none
};

struct script {
  std::uint64_t seed = 0;
  conditions net;
  std::uint32_t executors = 1;      ///< homes count from 0, and on from there again behind the last
  std::uint32_t listener_home = 0;  ///< on which one the listener lives
  bool shuffle_tasks = true;
  bool one_device = false;  ///< for both ends
  bool checksum = true;     ///< this and the next two are of each device
  bool place_unchecked = false;
  bool allow_shared_windows = true;
  std::uint32_t arena_bytes = 262'144;
  bool tight_pool = false;
  std::uint16_t shared_depth = 64;  ///< of the receives that connections share
  std::uint32_t failing_mappings = 0;
  std::uint32_t failing_accepts = 0;
  std::uint32_t declined_share = 0;  ///< of the loans of memory, in thousandths, what cannot be mapped
  std::uint32_t unsent_share = 0;    ///< likewise, for what there is no room in the socket
  std::uint32_t removal_us = 0;      ///< of the device, if there is one; 0: never
  std::uint64_t failing_call = 0;    ///< of those that can fail: the first is 1; 0: none
  std::vector<rail_kind> rails{};    ///< of each connection; none: it has one link, and knows of no rails
  std::vector<meeting_plan> meetings{};
};

/// What a seed stands for.
[[nodiscard]] script make_script(std::uint64_t seed);

/// The same program, changed for connections of several rails: with faults of theirs, and large transfers.
void give_rails(script& what);

/// Small ones, of which every call can be tried.
[[nodiscard]] script make_small_script(std::uint64_t seed);

[[nodiscard]] std::string to_text(const script& what);
/// Throws std::invalid_argument if it means nothing, which says what is wrong, and where.
[[nodiscard]] script parse_script(std::string_view text);

/// How long it is: what shrinking makes smaller.
[[nodiscard]] std::size_t length_of(const script& what) noexcept;

}  // namespace weft::sim
