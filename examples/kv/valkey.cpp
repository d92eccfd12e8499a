// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/shared_words.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <kv/valkey.hpp>

namespace kv {

using namespace weft;

namespace valkey {
namespace {

enum opcode : std::uint16_t { get_feature = 0, set_feature = 1, keep_alive = 2, register_buffer = 3 };

constexpr std::size_t select_place = 2;
constexpr std::size_t features_place = 24;
constexpr std::size_t address_place = 16;
constexpr std::size_t length_place = 24;
constexpr std::size_t key_place = 28;

template <class Number>
void put(std::span<std::byte> where, std::size_t place, Number number) noexcept {
  for (std::size_t i = sizeof number; i-- > 0; number = static_cast<Number>(number >> 8)) {
    where[place + i] = static_cast<std::byte>(number & 0xff);
    if constexpr (sizeof number == 1) break;
  }
}

template <class Number>
Number get(std::span<const std::byte> from, std::size_t place) noexcept {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) number = number << 8 | static_cast<std::uint64_t>(from[place + i]);
  return static_cast<Number>(number);
}

struct packer {
  std::span<std::byte> into;

  void features(opcode code, std::uint16_t select, std::uint64_t bits) const noexcept {
    put<std::uint16_t>(into, 0, code);
    put(into, select_place, select);
    put(into, features_place, bits);
  }
  void operator()(const get_server_feature& what) const noexcept { features(get_feature, what.select, what.features); }
  void operator()(const set_client_feature& what) const noexcept { features(set_feature, what.select, what.features); }
  void operator()(const keepalive&) const noexcept { put<std::uint16_t>(into, 0, keep_alive); }
  void operator()(const register_memory& what) const noexcept {
    put<std::uint16_t>(into, 0, register_buffer);
    put(into, address_place, what.address);
    put(into, length_place, what.length);
    put(into, key_place, what.key);
  }
};

}  // namespace

std::array<std::byte, message_bytes> pack(const message& what) {
  std::array<std::byte, message_bytes> made{};
  std::visit(packer{made}, what);
  return made;
}

message unpack(std::span<const std::byte> bytes) {
  if (bytes.size() != message_bytes) {
    throw error(errc::malformed, fmt::format("a message of {} bytes instead of {}", bytes.size(), message_bytes));
  }
  const auto select = get<std::uint16_t>(bytes, select_place);
  const auto features = get<std::uint64_t>(bytes, features_place);
  switch (const auto code = get<std::uint16_t>(bytes, 0)) {
    case get_feature:
      return get_server_feature{.select = select, .features = features};
    case set_feature:
      return set_client_feature{.select = select, .features = features};
    case keep_alive:
      return keepalive{};
    case register_buffer:
      return register_memory{.address = get<std::uint64_t>(bytes, address_place),
                             .length = get<std::uint32_t>(bytes, length_place),
                             .key = get<std::uint32_t>(bytes, key_place)};
    default:
      throw error(errc::malformed, fmt::format("a message of the unknown kind {}", code));
  }
}

}  // namespace valkey

namespace {

// A peer whose connection says nothing of credits has posted so many receives, and this end as many.
net::connection_options options_of(const valkey_options& options, net::profile speaks) noexcept {
  net::connection_options made;
  made.receive_size = valkey::message_bytes;
  made.receive_depth = options.receive_depth;
  made.incoming_reads = 1;
  made.outgoing_reads = 1;
  made.profile = speaks;
  return made;
}

// RDMA devices have all that it takes in their standard, so that nothing of weft's own need be said.
net::profile first_profile(const net::device& device) noexcept {
  return device.name().find("verbs") != std::string_view::npos ? net::profile::interop : net::profile::native;
}

}  // namespace

task<valkey_stream> valkey_stream::accept(net::device& device, net::connection_request peer, valkey_options options) {
  mr::region buffer;
  std::optional<error> failure;
  try {
    buffer = co_await make_buffer(device, options.buffer_bytes);
  } catch (const error& why) {
    failure = why;
  }
  if (failure) {
    const std::string words = fmt::format("turn {} away ({})", peer.peer(), failure->what());
    constexpr std::string_view said = "no memory for a buffer";
    co_await peer.reject(std::as_bytes(std::span(said)));
    throw error(failure->code(), words);
  }
  auto connected = co_await peer.accept(options_of(options, net::profile::native));
  co_return co_await start(device, std::move(connected), role::server, std::move(buffer));
}

task<valkey_stream> valkey_stream::connect(net::device& device, std::string address, valkey_options options) {
  auto buffer = co_await make_buffer(device, options.buffer_bytes);
  const net::profile first = first_profile(device);
  auto connected = co_await device.connect(address, options_of(options, first));
  if (!connected.capabilities().write_immediate && first == net::profile::interop) {
    // It goes over another fabric than a device, where weft has it, with weft.
    co_await connected.close();
    connected = co_await device.connect(address, options_of(options, net::profile::native));
  }
  co_return co_await start(device, std::move(connected), role::client, std::move(buffer));
}

task<valkey_stream> valkey_stream::start(net::device& device, net::connection peer, role ours, mr::region buffer) {
  valkey_stream made(device, std::move(peer), ours, std::move(buffer));
  if (!made.peer_.capabilities().write_immediate) {
    throw error(errc::not_supported, fmt::format("speak Valkey's protocol with {} over {}: it has no immediate data",
                                                 made.peer(), made.peer_.fabric()));
  }
  co_await made.open_buffer();
  if (ours == role::client) {
    const valkey::message asking = valkey::get_server_feature{};
    const valkey::message choosing = valkey::set_client_feature{};
    co_await made.tell(asking);
    co_await made.tell(choosing);
  }
  co_await made.announce_buffer();
  co_return made;
}

// Of zeroes, because the peer may say that it has written what it has not.
task<mr::region> valkey_stream::make_buffer(net::device& device, std::uint32_t bytes) {
  const bool has_windows = mr::includes(device.domain().capabilities().usages, mr::usage::bind_window);
  std::vector<std::byte> zeroes(bytes);
  co_return co_await device.register_memory(std::move(zeroes),
                                            {.usage = has_windows ? mr::usage::bind_window : mr::usage::write_dst});
}

task<> valkey_stream::open_buffer() {
  has_window_ = mr::includes(region_.usage(), mr::usage::bind_window);
  if (has_window_) window_ = co_await peer_.expose(region_.slice(0, size_), mr::usage::write_dst);
}

mr::remote_region valkey_stream::open_to_peer() const { return has_window_ ? window_.remote() : region_.remote(); }

task<> valkey_stream::announce_buffer() {
  written_ = read_ = 0;
  const mr::remote_region open = open_to_peer();
  return tell(valkey::register_memory{
      .address = open.address(), .length = size_, .key = static_cast<std::uint32_t>(open.key())});
}

task<> valkey_stream::tell(valkey::message what) {
  auto sent = co_await device_->allocate(valkey::message_bytes);
  const auto packed = valkey::pack(what);
  std::copy(packed.begin(), packed.end(), sent.bytes().begin());
  sent.resize(packed.size());
  try {
    co_await peer_.send(std::move(sent));
  } catch (const error& failure) {
    if (!is_end(failure)) throw;  // who reads hears of it, after what came before
  }
}

task<> valkey_stream::keep_alive() {
  const valkey::message alive = valkey::keepalive{};
  co_await tell(alive);
}

task<> valkey_stream::close() { return peer_.close(); }

void valkey_stream::refuse(std::string_view why) {
  peer_.abort();
  throw error(errc::protocol_error, fmt::format("{} breaks Valkey's protocol over RDMA: {}", peer(), why));
}

// A peer that is not weft cannot say how it goes: in the middle of anything is as good as at the end.
bool valkey_stream::is_end(const error& failure) const {
  return failure.code() == errc::peer_vanished && !peer_.capabilities().orderly_close;
}

// False: the peer has gone.
task<bool> valkey_stream::take_message() {
  std::optional<net::message> came;
  try {
    if (!gone_) came = co_await peer_.recv();
  } catch (const error& failure) {
    if (!is_end(failure)) throw;
  }
  gone_ = !came;
  if (gone_) co_return false;
  if (came->immediate && came->size() != 0) refuse("a message with a number beside it");
  if (came->immediate) {
    written(*came->immediate);
    co_return true;
  }
  std::optional<valkey::message> said;
  try {
    said = valkey::unpack(came->bytes());
  } catch (const error& wrong) {
    refuse(wrong.what());
  }
  came.reset();
  co_await handle(*said);
  co_return true;
}

// A reader and a writer take turns: either may be handed what the other waits for. False: the peer has gone.
template <class Condition>
task<bool> valkey_stream::take_messages_until(Condition condition) {
  while (!condition()) {
    const auto turn = co_await turn_->lock();
    if (condition()) break;
    if (!co_await take_message()) co_return false;
  }
  co_return true;
}

task<> valkey_stream::handle(const valkey::message& what) {
  if (const auto* const announced = std::get_if<valkey::register_memory>(&what)) use_buffer(*announced);
  if (role_ == role::client) {
    if (std::holds_alternative<valkey::set_client_feature>(what)) refuse("a server that chooses its client's features");
    co_return;
  }
  if (const auto* const asked = std::get_if<valkey::get_server_feature>(&what)) {
    const valkey::message none = valkey::get_server_feature{.select = asked->select};
    co_await tell(none);
  } else if (const auto* const chosen = std::get_if<valkey::set_client_feature>(&what)) {
    if (chosen->features != 0)
      refuse(fmt::format("it chooses the features {:#x}, which were not offered", chosen->features));
  }
}

void valkey_stream::written(std::uint32_t bytes) {
  if (bytes > size_ - written_) {
    refuse(fmt::format("it says that it has written {} bytes where {} were left", bytes, size_ - written_));
  }
  written_ += bytes;
}

// Each buffer is used to its end, so that another one before that is not what both ends count on.
void valkey_stream::use_buffer(const valkey::register_memory& announced) {
  if (target_ && used_ != target_->size()) {
    refuse(fmt::format("it announces a buffer when {} bytes of the last one are left", target_->size() - used_));
  }
  if (announced.length == 0) refuse("it announces a buffer of no bytes");
  if (announced.address > UINT64_MAX - announced.length)
    refuse("it announces a buffer beyond the end of all addresses");
  const mr::remote_region ours = open_to_peer();
  const std::array<mr::remote_place, 1> place{
      {{.fabric = ours.places().front().fabric, .address = announced.address, .key = announced.key}}};
  target_.emplace(place, announced.length, mr::usage::write_dst);
  used_ = 0;
}

task<std::size_t> valkey_stream::read_some(std::span<std::byte> where) {
  const auto has_come = [this] { return read_ != written_; };
  if (!co_await take_messages_until(has_come)) co_return 0;
  const std::size_t count = std::min<std::size_t>(where.size(), written_ - read_);
  // A peer may break the rules and write there again meanwhile.
  mr::load_shared(buffer_.subspan(read_, count), where.first(count));
  read_ += static_cast<std::uint32_t>(count);
  if (read_ == size_) co_await announce_buffer();
  co_return count;
}

task<> valkey_stream::write(std::span<const std::byte> what) {
  constexpr std::size_t most = std::size_t{64} << 10;
  const auto has_room = [this] { return target_ && used_ != target_->size(); };
  while (!what.empty() && !gone_) {
    if (!co_await take_messages_until(has_room)) co_return;
    const std::size_t count = std::min({what.size(), most, static_cast<std::size_t>(target_->size() - used_)});
    auto memory = co_await device_->allocate(count);
    std::copy_n(what.begin(), count, memory.bytes().begin());
    memory.resize(count);
    if (!co_await put(std::move(memory))) co_return;
    what = what.subspan(count);
  }
}

// False: the peer has gone.
task<bool> valkey_stream::put(mr::buffer bytes) {
  const std::size_t count = bytes.size();
  const auto place = target_->slice(std::exchange(used_, used_ + count), count);
  const net::write_options how{.immediate = static_cast<std::uint32_t>(count)};
  try {
    co_await peer_.write(std::move(bytes), place, how);
  } catch (const error& failure) {
    if (!is_end(failure)) throw;
    gone_ = true;
  }
  co_return !gone_;
}

}  // namespace kv
