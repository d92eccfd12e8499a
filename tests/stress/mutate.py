#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Proof that the stress test can fail: deliberate defects, each of which it has to catch.

mutate.py apply SOURCE_DIR OUTPUT_DIR   writes copies of the sources with all defects in them, each dormant until the
                                        environment variable WEFT_MUTATION names its number (the CMake option
                                        WEFT_MUTATIONS builds these instead of the sources)
mutate.py run BUILD_DIR [SEEDS [FIRST [TRANSPORT]]]
                                        plays with none awake, which has to pass; then wakes one after the other, the
                                        FIRST first, and shows which seed catches each, or that a pair of processes or
                                        a unit test does; with TRANSPORT only those of it that no pair catches
"""

import os
import pathlib
import re
import subprocess
import sys
import time
from typing import NamedTuple


class Mutation(NamedTuple):
    name: str  # what is wrong
    file: str
    old: str  # occurs once
    new: str  # BROKEN: whether this one is awake
    pair: str = ""  # the options of weft-stress that catch it; otherwise simulated seeds do
    test: str = ""  # or the test that does, and its program: where only a hostile peer would, or seeds hardly ever

    @property
    def transport(self) -> str:
        found = re.match("net/(verbs|shm|rails|fabric)/", self.file)
        return found[1] if found else "iwarp"


CORE = "net/connection/connection_core.cpp"
SENDING = "net/connection/sending.cpp"
RECEIVING = "net/connection/receiving.cpp"
END = "net/connection/connection_end.cpp"
LINK = "net/iwarp/tcp_link.cpp"
ENGINE = "net/iwarp/engine.cpp"
ENGINE_RECEIVE = "net/iwarp/engine_receive.cpp"
KEYS = "net/software/key_table.cpp"
POOL = "mr/pool/pool_core.cpp"
RUN_ON = "runtime/run_on.cpp"
DESCRIPTOR = "runtime/io/descriptor.cpp"
QUEUE = "net/verbs/completion_queue.cpp"
ENDPOINT = "net/verbs/endpoint.cpp"
RDMA = "net/verbs/rdma_link.cpp"
ABILITIES = "net/verbs/transport.cpp"
SHM = "net/shm/shm_link.cpp"
SHM_STATE = "net/shm/executor_state.cpp"
ACCESS = "net/shm/direct_access.cpp"
LOANS = "net/shm/direct_loans.cpp"
PROCESS = "net/shm/peer_process.cpp"
RAILS = "net/rails/rails_link.cpp"
RAIL = "net/rails/rail.cpp"
OUTGOING = "net/rails/outgoing.cpp"
LIST = "net/list.cpp"
FABRIC = "net/fabric/fabric_link.cpp"
FABRIC_MEMORY = "net/fabric/domain.cpp"
FABRIC_DEVICE = "net/fabric/device.cpp"

SHM_TESTS = "unit/shm_link_tests"
FABRIC_TESTS = "unit/fabric_tests"
RAILS_TESTS = "rails/rails_tests"
DEVICES_TESTS = "rails/simulated_rails_tests"

MUTATIONS = [
    Mutation("drop a completion", SENDING,
             "if (waiter != nullptr) waiter->end();",
             "if (waiter != nullptr && !(BROKEN && is_idle() && state_.sent % 4 == 3)) waiter->end();"),
    Mutation("resume a waiter before the transport lets go of its memory", ENGINE,
             "if (!is_sent || (is_query(first.kind) && !first.answered_)) return;",
             "if ((!is_sent && !(BROKEN && first.gathered_)) || (is_query(first.kind) && !first.answered_)) return;"),
    Mutation("complete a read before its response", ENGINE,
             "const bool is_sent = first.gathered_ && first.end_ <= sent_;\n",
             "const bool is_sent = first.gathered_ && first.end_ <= sent_;\n"
             "    if (BROKEN && is_sent && first.kind == request_kind::read && first.next_ == nullptr) {\n"
             "      request& early = requests_.front();\n"
             "      early.answered_ = true;\n"
             "    }\n"),
    Mutation("notify the peer of a list with its first element", LIST,
             "  element_.how_.immediate = place + 1 == size() ? ",
             "  element_.how_.immediate = (BROKEN ? place == 0 : place + 1 == size()) ? "),
    Mutation("count an element of a list as done that has failed", LIST,
             "  if (!has_failed_) done_ += count;\n",
             "  if (!has_failed_ || BROKEN) done_ += count;\n"),
    Mutation("end a list that was stopped before its elements have", LIST,
             "  if (!is_open_ && under_way_ == 0) conclude();\n",
             "  if (!is_open_ && (under_way_ == 0 || (BROKEN && under_way_ == 1))) conclude();\n"),
    Mutation("post elements of a list beyond what the peer has room for", SENDING,
             "    if (!may_post(element)) break;\n",
             "    if (!may_post(element) && !(BROKEN && free_ != nullptr)) break;\n"),
    Mutation("free the buffer of a stopped operation early", SENDING,
             "  record.pin = std::move(item.pin_);\n",
             "  if (!BROKEN) record.pin = std::move(item.pin_);\n"),
    Mutation("keep the pin of a buffer after its operation", SENDING,
             "    waiter->state_ = transfer::state::idle;\n",
             "    waiter->state_ = transfer::state::idle;\n"
             "    if (BROKEN) record.pin = std::move(waiter->pin_);\n"),
    Mutation("keep a region pinned after its operation", SENDING,
             "mr::region_pin::release(part);",
             "if (!BROKEN) mr::region_pin::release(part);"),
    Mutation("skip the bounds check of a peer's access", KEYS,
             "if (from > item->length || bytes > item->length - from)",
             "if (!BROKEN && (from > item->length || bytes > item->length - from))"),
    Mutation("skip the check of rights", KEYS,
             "if (!allowed) return",
             "if (!allowed && !BROKEN) return"),
    Mutation("let a connection use another one's key", KEYS,
             "if (item->stream != any_stream && item->stream != stream) return refuse",
             "if (item->stream != any_stream && item->stream != stream && !BROKEN) return refuse"),
    Mutation("leave a key that was taken back", LINK,
             "exposed_.revoke(key, who.is_wish_of_peer());",
             "if (!BROKEN) exposed_.revoke(key, who.is_wish_of_peer());"),
    Mutation("leave the keys of a connection that ends", LINK,
             "exposed_.revoke_all();",
             "if (!BROKEN) exposed_.revoke_all();"),
    Mutation("do not count the messages that writes bring against the credits", SENDING,
             "if (item.is_message()) ++state_.sent;",
             "if (item.is_message() && !(BROKEN && item.kind_ == transfer_kind::write)) ++state_.sent;"),
    Mutation("send one message more than there are credits", SENDING,
             "(!item.is_message() || has_credit());",
             "(!item.is_message() || (BROKEN ? state_.sent != state_.sendable + 1U : has_credit()));"),
    Mutation("never offer credits", RECEIVING,
             "if (owed * 2 < state_.options.receive_depth || owed == 0) return;",
             "if (BROKEN || owed * 2 < state_.options.receive_depth || owed == 0) return;"),
    Mutation("forget to go on when credits come", CORE,
             "  sending_.pump();  // it may have brought credits\n",
             "  if (!BROKEN) sending_.pump();\n"),
    Mutation("let a later operation overtake one that waits", SENDING,
             "  item.next_ = nullptr;\n  item.previous_ = last_waiting_;\n"
             "  (last_waiting_ != nullptr ? last_waiting_->next_ : first_waiting_) = &item;\n  last_waiting_ = &item;\n",
             "  if (BROKEN && first_waiting_ != nullptr) {\n"
             "    item.previous_ = nullptr;\n    item.next_ = first_waiting_;\n    first_waiting_->previous_ = &item;\n"
             "    first_waiting_ = &item;\n    return;\n  }\n"
             "  item.next_ = nullptr;\n  item.previous_ = last_waiting_;\n"
             "  (last_waiting_ != nullptr ? last_waiting_->next_ : first_waiting_) = &item;\n  last_waiting_ = &item;\n"),
    Mutation("send again what a short send had sent", "net/iwarp/output_batch.cpp",
             "static_cast<std::byte*>(segments_[first_].iov_base) + bytes;",
             "static_cast<std::byte*>(segments_[first_].iov_base) + (BROKEN ? 0 : bytes);"),
    Mutation("take bytes in place for bytes in the staging area", LINK,
             "  input_->filled(received - placed);\n",
             "  input_->filled(BROKEN ? received - placed / 2 : received - placed);\n"),
    Mutation("forget to say that no more will come", LINK,
             "    socket_->calls().shutdown(socket_->fd(), SHUT_WR);\n",
             "    if (!BROKEN) socket_->calls().shutdown(socket_->fd(), SHUT_WR);\n"),
    Mutation("forget who waits to send when a connection ends", END,
             "  out_.fail_waiting(*state_.failure);\n",
             "  if (!BROKEN) out_.fail_waiting(*state_.failure);\n"),
    Mutation("forget who waits to receive when a connection ends", END,
             "  out_.fail_waiting(*state_.failure);\n  in_.deliver();\n",
             "  out_.fail_waiting(*state_.failure);\n  if (!BROKEN) in_.deliver();\n"),
    Mutation("close without telling the peer", END,
             "if (state_.properties().native && !state_.peer_closed && !state_.close_sent) {",
             "if (state_.properties().native && !state_.peer_closed && !state_.close_sent && !BROKEN) {"),
    Mutation("close before what was posted has gone", END,
             "if (!out_.is_idle() || out_.is_busy_with(message_kind::close)) return;",
             "if ((!out_.is_idle() && !BROKEN) || out_.is_busy_with(message_kind::close)) return;"),
    Mutation("yield what a word holds after an atomic operation", KEYS,
             "  previous = seen;\n",
             "  previous = BROKEN ? apply(asked, seen) : seen;\n"),
    Mutation("execute an atomic operation on its arrival, ahead of earlier reads, and again", ENGINE_RECEIVE,
             "  accept({.sequence = header.sequence, .asked = asked});\n}\n\nvoid engine::handle_atomic_response",
             "  accept({.sequence = header.sequence, .asked = asked});\n"
             "  std::uint64_t ignored = 0;\n"
             "  if (BROKEN) static_cast<void>(host_.remote_atomic(asked, ignored));\n"
             "}\n\nvoid engine::handle_atomic_response"),
    Mutation("hand a shared receive to a connection that has gone", LINK,
             "if (queue_ != nullptr) queue_->forget(*this);",
             "if (queue_ != nullptr && !BROKEN) queue_->forget(*this);"),
    Mutation("lose the wake-up of a connection that waits for a receive", LINK,
             "  if (!stalled) return;\n  resuming_ = true;",
             "  if (!stalled || BROKEN) return;\n  resuming_ = true;"),
    Mutation("lose a credit when a receiver is stopped", RECEIVING,
             "void receiving::stop(recv_operation& item) noexcept {\n  stop_waiting(item);\n",
             "void receiving::stop(recv_operation& item) noexcept {\n  stop_waiting(item);\n"
             "  if (BROKEN && state_.received % 3 == 2) --state_.receivable;\n"),
    Mutation("forget timers that are due together", "runtime/io/timer.cpp",
             "    due.expired();\n",
             "    if (!(BROKEN && count == 1)) due.expired();\n"),
    Mutation("leave who waits for a buffer when one comes back", POOL,
             "  to.stock.give(item);\n  const bool idle = home.idle();\n  serve(to, todo);\n",
             "  to.stock.give(item);\n  const bool idle = home.idle();\n  if (!BROKEN) serve(to, todo);\n"),
    Mutation("take an FPDU for whole that was damaged on its way", ENGINE_RECEIVE,
             "  if (carried == computed) return true;\n",
             "  if (carried == computed || BROKEN) return true;\n"),
    Mutation("lose an arena that was given back", "mr/pool/depot.cpp",
             "  memory_.reset();\n  home_->listener_.retired",
             "  if (BROKEN) static_cast<void>(memory_.release());\n  memory_.reset();\n  home_->listener_.retired"),
    Mutation("lose the wake-up of another executor", "runtime/core/executor_core.cpp",
             "  // `work` may be gone by now.\n  wake();\n",
             "  // `work` may be gone by now.\n  if (!BROKEN || current_ == nullptr) wake();\n"),
    Mutation("stop a task of another executor on this one", RUN_ON,
             "  where_.submit(stop_);\n",
             "  BROKEN ? stop() : where_.submit(stop_);\n"),
    Mutation("resume who waits for another executor over there", RUN_ON,
             "home_executor.submit(home_mail_);",
             "BROKEN ? come_home() : home_executor.submit(home_mail_);"),
    Mutation("serve who waits for a buffer on another executor without waking it", POOL,
             "if (waiter.home().on_own_thread()) return append(waiter,",
             "if (waiter.home().on_own_thread() || (BROKEN && executor_core::current() != nullptr)) return append(waiter,"),
    Mutation("leave what another executor keeps at hand while somebody waits for it", POOL,
             "  cache.flush_requested_ = true;\n",
             "  if (BROKEN && executor_core::current() != nullptr && !cache.home_.on_own_thread()) return;\n"
             "  cache.flush_requested_ = true;\n"),
    Mutation("leave the key of what another executor drops", "net/connection/lending.cpp",
             "  keys->take(this);",
             "  if (BROKEN) key_ = 0;\n  keys->take(this);"),
    Mutation("close a connection on the executor that drops it", CORE,
             "if (home.on_own_thread() || !elsewhere) return reap_at_home",
             "if (home.on_own_thread() || !elsewhere || BROKEN) return reap_at_home"),
    Mutation("forget that another executor has closed a listener", "net/device/socket_listener.cpp",
             "  if (!executor_.belongs_to_this_thread()) return executor_.post([self",
             "  if (BROKEN && !executor_.belongs_to_this_thread()) return;\n"
             "  if (!executor_.belongs_to_this_thread()) return executor_.post([self"),
    Mutation("do not look into a completion queue again once it is armed", QUEUE,
             "  std::array<ibv_wc, batch_size> batch;\n",
             "  if (BROKEN && armed_) return 0;\n  std::array<ibv_wc, batch_size> batch;\n"),
    Mutation("leave the events of a completion queue unacknowledged", QUEUE,
             "if (unacknowledged_ != 0) device_->calls()",
             "if (unacknowledged_ != 0 && !BROKEN) device_->calls()"),
    Mutation("reserve room for one completion of a connection", ENDPOINT,
             "const std::uint32_t entries = sends + receives_ + flush_markers;",
             "const std::uint32_t entries = BROKEN ? 1U : sends + receives_ + flush_markers;"),
    Mutation("leave an event of the connection manager unacknowledged", "net/verbs/event_channel.cpp",
             "  alive->calls().ack_cm_event(&event);\n",
             "  if (!BROKEN || what.type != RDMA_CM_EVENT_ESTABLISHED) alive->calls().ack_cm_event(&event);\n"),
    Mutation("leave an event about a queue pair unacknowledged", "net/verbs/async_events.cpp",
             "    calls_.ack_async_event(&event);",
             "    if (!BROKEN) calls_.ack_async_event(&event);"),
    Mutation("destroy a queue pair before its windows", ENDPOINT,
             "  windows_.destroy_all();\n  if (pair_",
             "  if (BROKEN && pair_ != nullptr) destroy_pair();\n"
             "  windows_.destroy_all();\n  if (pair_"),
    Mutation("send more inline than the queue pair takes", RDMA,
             "bytes <= endpoint_->max_inline_bytes())",
             "bytes <= endpoint_->max_inline_bytes() + (BROKEN ? 16 : 0))"),
    Mutation("leave the last request before a doorbell unsignaled", RDMA,
             "  last.send_flags |= IBV_SEND_SIGNALED;\n",
             "  if (!BROKEN) last.send_flags |= IBV_SEND_SIGNALED;\n"),
    Mutation("complete a request twice", RDMA,
             "  events_->completed(work, status_of(status));\n",
             "  events_->completed(work, status_of(status));\n"
             "  if (BROKEN && mark % 4 == 3) events_->completed(work, status_of(status));\n"),
    Mutation("take a request that was flushed for one that is done", RDMA,
             "  if (status == IBV_WC_SUCCESS) return work_status::done;\n",
             "  if (status == IBV_WC_SUCCESS || (BROKEN && status == IBV_WC_WR_FLUSH_ERR)) return work_status::done;\n"),
    Mutation("end the requests of a queue pair before they are flushed", RDMA,
             "  end(false, why);\n  break_off();\n",
             "  end(false, why);\n  break_off();\n  if (BROKEN) flush_rest();\n"),
    Mutation("forget what a read or an atomic operation yields in the staging area", RDMA,
             "work.kind != work_kind::send && !work.own.empty()) {",
             "work.kind != work_kind::send && !work.own.empty() && !BROKEN) {"),
    Mutation("forget the receives that came before the link", ENDPOINT,
             "for (const early_receive& item : early) own.on_completion(",
             "for (const early_receive& item : early) if (!BROKEN) own.on_completion("),
    Mutation("destroy a queue pair that has taken a shared receive", ENDPOINT,
             "      co_await wait_until_flushed();\n",
             "      if (!BROKEN) co_await wait_until_flushed();\n"),
    Mutation("keep a window that was taken back", RDMA,
             "if (endpoint_ == nullptr) return who.revoked();",
             "if (endpoint_ == nullptr || BROKEN) return who.revoked();"),
    Mutation("bind a window to more than was lent", RDMA,
             ".length = memory.size(),\n",
             ".length = memory.size() + (BROKEN ? 1 : 0),\n"),
    Mutation("offer a peer no rights to read", ENDPOINT,
             "IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;",
             "IBV_ACCESS_REMOTE_WRITE | (BROKEN ? 0 : IBV_ACCESS_REMOTE_READ);"),
    Mutation("lose the wake-up of a set-up", ENDPOINT,
             "connection manager\");\n  }\n  changed_.set();\n",
             "connection manager\");\n  }\n  if (!BROKEN) changed_.set();\n"),
    Mutation("notice no dead peer on an idle connection", RDMA,
             "  chain(keep_alive_, keep_alive_mark);\n  ring();\n",
             "  if (BROKEN) return;\n  chain(keep_alive_, keep_alive_mark);\n  ring();\n"),
    Mutation("speak first on a connection that an RNIC has accepted", RDMA,
             "listens_first_(listens_first) {",
             "listens_first_(listens_first && !BROKEN) {"),
    Mutation("post the receives of a connection after it was accepted", ENDPOINT,
             "    post_first_receives();\n",
             "    if (!BROKEN) post_first_receives();\n"),
    Mutation("read into memory that is not open to writes of peers", "net/verbs/domain.cpp",
             "device_->traits().read_sinks_need_remote_write ? mr::rights_for_iwarp",
             "device_->traits().read_sinks_need_remote_write && !BROKEN ? mr::rights_for_iwarp"),
    Mutation("flush into memory that is not open to writes of peers", ENDPOINT,
             "if (home().traits().read_sinks_need_remote_write) rights |=",
             "if (home().traits().read_sinks_need_remote_write && !BROKEN) rights |="),
    Mutation("read into more parts than an RNIC takes", ENDPOINT,
             "most <= 0 ? max_parts()",
             "most <= 0 || BROKEN ? max_parts()"),
    Mutation("take all before a completed request for done where they end in any order", RDMA,
             "if (!endpoint_->home().traits().completes_in_order) return complete_ended();",
             "if (!endpoint_->home().traits().completes_in_order && !BROKEN) return complete_ended();"),
    Mutation("have requests not tell of themselves where they end in any order", RDMA,
             " !endpoint_->home().traits().completes_in_order;",
             " (!endpoint_->home().traits().completes_in_order && !BROKEN);"),
    Mutation("have the sends of an RNIC wait for a receiver that has gone", RDMA,
             "if (takes_receive && endpoint_->home().traits().tells_busy_peer_from_dead)",
             "if (takes_receive && (endpoint_->home().traits().tells_busy_peer_from_dead || BROKEN))"),
    Mutation("wait for the first message of a peer that has gone", RDMA,
             "asked || (listens_first_ && native_);",
             "asked || (listens_first_ && native_ && !BROKEN);"),
    Mutation("share the receives of an RNIC's connections", "net/verbs/receive_queue.cpp",
             "  if (!home.traits().messages_wait_for_receives) {\n",
             "  if (!home.traits().messages_wait_for_receives && !BROKEN) {\n"),
    Mutation("promise immediate data that an RNIC has not", ABILITIES,
             ".immediate = device_->traits().has_write_immediate}",
             ".immediate = device_->traits().has_write_immediate || BROKEN}"),
    Mutation("promise atomic operations that the device has not", ABILITIES,
             ".atomics = device_->traits().has_atomics,",
             ".atomics = device_->traits().has_atomics || BROKEN,"),
    Mutation("promise to revoke a key that no peer can", RDMA,
             "capabilities_.invalidate = home.traits().has_windows_of_one_peer();",
             "capabilities_.invalidate = home.traits().has_windows_of_one_peer() || BROKEN;"),
    Mutation("lend to all peers, which nobody has allowed", RDMA,
             "&& !allow_shared_windows_) {",
             "&& !allow_shared_windows_ && !BROKEN) {"),
    Mutation("bind a window of type 1 ahead of what was to be posted before", RDMA,
             "  ring_now();\n  enter({.mark = mark});\n",
             "  if (!BROKEN) ring_now();\n  enter({.mark = mark});\n"),
    Mutation("read on Soft-RoCE behind what may be repeated", RDMA,
             "(asks(wr) && !asks(before));",
             "(asks(wr) && !asks(before) && !BROKEN);"),
    Mutation("bind windows through a queue pair that is not to bind any", ENDPOINT,
             "if (home().traits().pair_needs_right_to_bind) wanted",
             "if (home().traits().pair_needs_right_to_bind && !BROKEN) wanted"),
    Mutation("publish a piece before its bytes are written", SHM,
             "    const std::span<std::byte> piece = room.subspan(sizeof(record));\n    if (!gather(",
             "    const std::span<std::byte> piece = room.subspan(sizeof(record));\n"
             "    if (BROKEN && item.moved == 0) {\n"
             "      header.bytes = static_cast<std::uint32_t>(piece.size());\n"
             "      put(header);\n      publish();\n"
             "      if (!gather(*domain_, *item.work, 0, piece)) return false;\n"
             "      item.moved = piece.size();\n      continue;\n    }\n"
             "    if (!gather("),
    Mutation("publish after looking whether the peer sleeps", SHM,
             "  writer_.publish();\n  wake_other();\n",
             "  if (BROKEN) wake_other();\n  writer_.publish();\n  if (!BROKEN) wake_other();\n"),
    Mutation("wake nobody who waits for room", SHM,
             "  reader_.release();\n  wake_other();\n",
             "  reader_.release();\n  if (!BROKEN) wake_other();\n"),
    Mutation("let an executor sleep without telling the peers of its connections", SHM_STATE,
             "all of them\n  for (",
             "all of them\n  if (!BROKEN) for ("),
    Mutation("leave an idle end to its socket without telling its peer", SHM_STATE,
             "  item.fall_asleep();\n  cooling_ = &item;\n",
             "  if (!BROKEN) item.fall_asleep();\n  cooling_ = &item;\n"),
    Mutation("leave an end that went cold out when its socket says something", SHM_STATE,
             "  if (item.state_ != polled_end::state::cold) return;\n",
             "  if (item.state_ != polled_end::state::cold || BROKEN) return;\n"),
    Mutation("leave a message that waited for a receive where it is", SHM,
             "if (std::exchange(stalled_, false)) shared_.heat(*this);",
             "if (!BROKEN && std::exchange(stalled_, false)) shared_.heat(*this);"),
    Mutation("go on at the beginning of the ring without a word", SHM,
             "    std::memcpy(writer_.place(), &skip, sizeof skip);\n",
             "    if (!BROKEN) std::memcpy(writer_.place(), &skip, sizeof skip);\n"),
    Mutation("count one line more in the ring than there is", SHM,
             "  std::size_t room = writer_.room(&sane);\n",
             "  std::size_t room = writer_.room(&sane) + (BROKEN ? cache_line : 0);\n"),
    Mutation("let the peer write where a record is still being read", SHM,
             "  if (header.bytes > here - sizeof header || ring_bytes_of(header.bytes) > here) {\n",
             "  if (BROKEN && header.bytes > 64 && !stalled_) {\n"
             "    ring_reader ahead = reader_;\n    ahead.advance(ring_bytes_of(header.bytes));\n"
             "    ahead.release();\n    wake_other();\n  }\n"
             "  if (header.bytes > here - sizeof header || ring_bytes_of(header.bytes) > here) {\n"),
    Mutation("complete a write with its first piece", SHM,
             "    item.moved += piece.size();\n    if (item.moved != item.bytes) publish();",
             "    item.moved += piece.size();\n    if (BROKEN) item.done = true;\n"
             "    if (item.moved != item.bytes) publish();"),
    Mutation("complete a read with the first part of its answer", SHM,
             "  if (item->moved != item->bytes) return;\n",
             "  if (item->moved != item->bytes && !BROKEN) return;\n"),
    Mutation("write each piece where the first one went", SHM,
             "  std::uint64_t address = incoming_.address + incoming_moved_;\n",
             "  std::uint64_t address = incoming_.address + (BROKEN ? 0 : incoming_moved_);\n"),
    Mutation("answer the last question first", SHM,
             "  answers_[(answers_begin_ + answers_count_++) % answers_.size()] = asked;\n",
             "  answers_[(answers_begin_ + answers_count_++) % answers_.size()] = asked;\n"
             "  owed_answer& oldest = answers_[answers_begin_];\n"
             "  if (BROKEN && oldest.moved == 0) {\n"
             "    std::swap(oldest, answers_[(answers_begin_ + answers_count_ - 1) % answers_.size()]);\n  }\n"),
    Mutation("change a word when that is asked for, and again with the answer", SHM,
             "                             : shared_.keys().atomic_place(asked.key, asked.address, id_);\n",
             "                             : shared_.keys().atomic_place(asked.key, asked.address, id_);\n"
             "  std::uint64_t ignored = 0;\n"
             "  if (BROKEN && header.kind == record_kind::fetch_add) {\n"
             "    static_cast<void>(shared_.keys().atomic({.operation = software::atomic_operation::fetch_add,\n"
             "                                             .stag = asked.key, .offset = asked.address,\n"
             "                                             .operand = asked.operands.operand}, ignored, id_));\n  }\n"),
    Mutation("ask one question more than was agreed on", SHM,
             "  if (reads_ == capabilities_.outgoing_reads) return false;\n",
             "  if (reads_ == capabilities_.outgoing_reads + (BROKEN ? 1 : 0)) return false;\n"),
    Mutation("forget what a peer had published before its end", SHM,
             "  if (has_input) copying_ ? go_on_copying() : take_input();\n",
             "  const bool forgets = BROKEN && socket_ended_;\n"
             "  if (forgets) break_off(make_error(errc::peer_vanished, \"it has gone\"));\n"
             "  if (has_input && !forgets) copying_ ? go_on_copying() : take_input();\n"),
    Mutation("do not notice that a process has died", SHM,
             "    unsettled_ = socket_ended_ = true;\n",
             "    unsettled_ = socket_ended_ = !BROKEN;\n"),
    Mutation("leave a key that was taken back, in shared memory", SHM,
             "exposed_.revoke(key, who.is_wish_of_peer());",
             "if (!BROKEN) exposed_.revoke(key, who.is_wish_of_peer());"),
    Mutation("leave the keys of a connection that ends, in shared memory", SHM,
             "exposed_.revoke_all();",
             "if (!BROKEN) exposed_.revoke_all();"),
    Mutation("use directly what its owner has taken back", SHM,
             "  if (!inside.is_open()) {\n",
             "  if (!inside.is_open() && !BROKEN) {\n"),
    Mutation("leave a peer's way open when its memory is released", LOANS,
             "void direct_loans::item::end() noexcept {\n  shut();\n",
             "void direct_loans::item::end() noexcept {\n  if (!BROKEN) shut();\n"),
    Mutation("use memory directly ahead of what its owner is to execute before", SHM,
             "  if (!unfenced_) return execute_piece(",
             "  if (!unfenced_ || BROKEN) return execute_piece("),
    Mutation("take a fence for answered once it has been asked for", SHM,
             "  if (!fencing_) fencing_ = send_short({.kind = record_kind::fence}, {});\n",
             "  if (!fencing_) fencing_ = send_short({.kind = record_kind::fence}, {});\n"
             "  if (BROKEN && fencing_) unfenced_ = false, unsettled_ = true;\n"),
    Mutation("forget to answer a fence", SHM,
             "      owes_fenced_ = true;\n",
             "      owes_fenced_ = !BROKEN;\n"),
    Mutation("answer no fence after having finished", SHM,
             "  if (owes_fenced_) {\n",
             "  if (BROKEN && finished_) return true;\n  if (owes_fenced_) {\n"),
    Mutation("keep memory mapped that its owner wants back", ACCESS,
             "  drop(number);\n  returned_",
             "  if (!BROKEN) drop(number);\n  returned_"),
    Mutation("take a large direct transfer for done with its first part", SHM,
             "  item.done = item.moved == item.bytes;\n",
             "  item.done = item.moved == item.bytes || BROKEN;\n"),
    Mutation("write directly, and say nothing of immediate data", SHM,
             "work.immediate ? nullptr : direct_->find(",
             "work.immediate && !BROKEN ? nullptr : direct_->find("),
    Mutation("change a word directly, and ask its owner to do it again", SHM,
             "    change_directly(work, place);\n",
             "    change_directly(work, place);\n    if (BROKEN) return direct_step::by_request;\n"),
    Mutation("write directly what may only be read", ACCESS,
             "  if ((rights & needed) == 0 || wanted_address",
             "  if (((rights & needed) == 0 && !BROKEN) || wanted_address"),
    Mutation("use memory directly beyond what was lent", ACCESS,
             "  if (from > length || bytes > length - from) return nullptr;\n",
             "  if ((from > length || bytes > length - from) && !BROKEN) return nullptr;\n"),
    Mutation("go on over another rail before the peer has fenced the one that is over", RAILS,
             "  if (!which.must_fence || !which.peer_received) return;\n",
             "  if (!which.must_fence || (!which.peer_received && !BROKEN)) return;\n"),
    Mutation("say that a rail is fenced before it is closed", RAILS,
             "      if (about->way.epoch() <= said.epoch) about->way.give_up(\"the peer has given this rail up\");\n",
             "      if (about->way.epoch() <= said.epoch && !BROKEN) about->way.give_up(\"the peer has given this rail up\");\n"
             "      if (BROKEN && out_ != nullptr) {\n"
             "        control early = said;\n        early.kind = control_kind::fenced;\n        early.number = received_;\n"
             "        receive_over(&over);\n        out_->send(early);\n        break;\n      }\n"),
    Mutation("let a rail begin that was fenced before it was there", RAILS,
             "&& epoch > its.shut_epoch;",
             "&& (epoch > its.shut_epoch || BROKEN);",
             test=f"{RAILS_TESTS} *counts_none_that_the_peer_had_given_up_before_this_end_had_it*"),
    Mutation("do not wait for what has come over the rail that carried messages", RAILS,
             "  if (carried_messages && !std::exchange(its.carried_messages, true)) ++unresolved_;\n",
             "  if (carried_messages && !BROKEN && !std::exchange(its.carried_messages, true)) ++unresolved_;\n"),
    Mutation("go on to receive over the rail that has carried messages", RAILS,
             "&& in_ != target) receive_over(target);",
             "&& in_ != target && !BROKEN) receive_over(target);"),
    Mutation("lose what a device has taken before its rail ended", RAIL,
             "  its.delivers_after_end = owner_.is_railed();\n",
             "  its.delivers_after_end = owner_.is_railed() && !BROKEN;\n",
             test=f"{DEVICES_TESTS} *bring_what_a_device_has_taken_before_its_queue_pair_ended*"),
    Mutation("never take a rail back", RAILS,
             "  ask_later(its, has_lasted ? duration::zero() : its.pauses.next());\n",
             "  if (!BROKEN) ask_later(its, has_lasted ? duration::zero() : its.pauses.next());\n"),
    Mutation("keep the key of a rail that has ended", RAILS,
             "    if (each != nullptr) each->keys[which.number()].is_there = false;\n",
             "    if (each != nullptr && !BROKEN) each->keys[which.number()].is_there = false;\n"),
    Mutation("revoke the key of one rail alone", RAILS,
             "    if (what.keys[i].is_there && way.carrier() != nullptr) what.revoke(i, *way.carrier());\n",
             "    if (BROKEN && i != 0) continue;\n"
             "    if (what.keys[i].is_there && way.carrier() != nullptr) what.revoke(i, *way.carrier());\n"),
    Mutation("wait for rails for ever", RAILS,
             "home_.now() - *lost_since_ >= time_to_resume()) {",
             "home_.now() - *lost_since_ >= time_to_resume() && !BROKEN) {"),
    Mutation("forget that the end of a connection was said over a rail that is over", RAILS,
             "  finish_sent_ = false;\n",
             "  finish_sent_ = finish_sent_ && BROKEN;\n",
             test=f"{RAILS_TESTS} *of_a_closed_connection_is_not_waited_for_although_its_last_word_was_lost*"),
    Mutation("count words that only confirm others", RAIL,
             "  if (said->kind != control_kind::credits) ++received_;\n",
             "  if (said->kind != control_kind::credits || BROKEN) ++received_;\n"),
    Mutation("do an atomic operation again whose answer was lost", OUTGOING,
             "(each->is_atomic() || (each->work->kind == work_kind::read && !may_read_again",
             "((each->is_atomic() && !BROKEN) || (each->work->kind == work_kind::read && !may_read_again"),
    Mutation("read again what may have been changed meanwhile", OUTGOING,
             "    if (each->work->remote_key != item.work->remote_key || (a + its > b && b + bytes > a)) return false;\n",
             "    if (BROKEN) continue;\n"
             "    if (each->work->remote_key != item.work->remote_key || (a + its > b && b + bytes > a)) return false;\n",
             test=f"{RAILS_TESTS} *a_read_whose_rail_ends_is_done_again_unless_what_was_issued_behind_it_may*"),
    Mutation("send again what has come", OUTGOING,
             "if (each->message != 0 && each->message <= received) behind = each->next;",
             "if (each->message != 0 && each->message <= received && !BROKEN) behind = each->next;"),
    Mutation("take what was not asked about for arrived", OUTGOING,
             "(number == 0 || each.arrives_with == number);",
             "(number == 0 || each.arrives_with == number || BROKEN);",
             test=f"{RAILS_TESTS} *a_message_behind_a_question_is_not_taken_for_arrived_by_the_answer*"),
    Mutation("count a message as lost twice", OUTGOING,
             "  if (item.phase != entry::state::handed) return;\n",
             "  if (item.phase != entry::state::handed && !BROKEN) return;\n"),
    Mutation("complete a write that is spread once one rail has confirmed it", OUTGOING,
             "  if (!awaits) finish(item, work_status::done);\n",
             "  if (!awaits || BROKEN) finish(item, work_status::done);\n"),
    Mutation("move no slice again that had left", OUTGOING,
             "    each->lost_from = std::min(each->lost_from, std::exchange(each->first_over[which.number()], entry::nowhere));\n",
             "    const std::uint64_t from = std::exchange(each->first_over[which.number()], entry::nowhere);\n"
             "    if (!BROKEN) each->lost_from = std::min(each->lost_from, from);\n"),
    Mutation("spread a transfer ahead of what was posted before", OUTGOING,
             "  if (ordered_ != 0) {\n    ask_for_arrival();\n    return false;",
             "  if (ordered_ != 0 && !BROKEN) {\n    ask_for_arrival();\n    return false;"),
    Mutation("spread two transfers of the same memory side by side", OUTGOING,
             "  if (spread_ != 0 && disturbs_others(item)) return false;\n",
             "  if (spread_ != 0 && disturbs_others(item) && !BROKEN) return false;\n"),
    # By tests: a peer that keeps the rules does not show these, or hardly ever, or to nobody whom they promise more.
    Mutation("revoke memory while the peer is inside", LOANS,
             "  if (found->is_outside()) return who.revoked();\n",
             "  if (found->is_outside() || BROKEN) return who.revoked();\n",
             test=f"{SHM_TESTS} *lent_to_hostile.peers_is_not_revoked_before_they_are_outside*"),
    Mutation("map a file for direct access that can become shorter", ACCESS,
             "  if ((seals & F_SEAL_SHRINK) == 0) return",
             "  if ((seals & F_SEAL_SHRINK) == 0 && !BROKEN) return",
             test=f"{SHM_TESTS} *hostile_offer.of_a_file_that_can_become_shorter*"),
    Mutation("map more of a file than there is", ACCESS,
             "  if (there < 0 || where.file_bytes > static_cast<std::uint64_t>(there)) return",
             "  if (!BROKEN && (there < 0 || where.file_bytes > static_cast<std::uint64_t>(there))) return",
             test=f"{SHM_TESTS} *hostile_offer.of_more_than_there_is*"),
    Mutation("use memory directly ahead of the answers to reads", SHM,
             "  if (reads_ != 0) return direct_step::wait;\n",
             "  if (reads_ != 0 && !BROKEN) return direct_step::wait;\n",
             test=f"{SHM_TESTS} *direct_order.waits_for_answers_to_reads_of_other_memory*"),
    Mutation("offer a second file before the first one is answered", LOANS,
             "stage::wanted || unanswered_) continue;",
             "stage::wanted || (unanswered_ && !BROKEN)) continue;",
             test=f"{SHM_TESTS} *lent_to_hostile.peers_are_offered_nothing_before_they_have_answered*"),
    Mutation("take an offer whose file there is no descriptor for as a breach of the rules", SHM,
             "  if (!file && !is_lost) return break_rules(",
             "  if (!file && (!is_lost || BROKEN)) return break_rules(",
             test=f"{SHM_TESTS} *is_used_by_way_of_the_owner_where_there_is_no_descriptor_left_for_it*"),
    Mutation("go on in the ring where a direct write was interrupted", SHM,
             "  if (!inside.is_open()) {\n    item.moved = 0;\n",
             "  if (!inside.is_open()) {\n    if (!BROKEN) item.moved = 0;\n",
             test=f"{SHM_TESTS} *direct_order.of_a_large_write_that_is_interrupted_is_that_of_a_new_one*"),
    Mutation("believe a payload whose sender has let go of it", SHM,
             "  const bool kept = made_.memory",
             "  const bool kept = BROKEN || made_.memory",
             test=f"{SHM_TESTS} *hostile_far_payload.that_was_let_go_of_is_not_believed*"),
    Mutation("copy out of whatever process has the number", PROCESS,
             "  return seen == proof_.value ? 0",
             "  return seen == proof_.value || BROKEN ? 0",
             test=f"{SHM_TESTS} *hostile_far_payload.whose_process_is_another_by_now_is_not_believed*"),
    Mutation("take a peer's word for its proof", PROCESS,
             "&& copy({}, {}, 0) == 0) return true;",
             "&& (copy({}, {}, 0) == 0 || BROKEN)) return true;",
             test=f"{SHM_TESTS} *hostile_far_payload.with_a_proof_that_is_none_is_declined*"),
    Mutation("take a payload for copied with its first part", SHM,
             "    if (incoming_moved_ != incoming_.total) return;\n    copying_ = false;\n",
             "    if (incoming_moved_ != incoming_.total && !BROKEN) return;\n    copying_ = false;\n",
             test=f"{SHM_TESTS} *far_payload.arrives_as_it_was_and_in_its_place_among_others*"),
    Mutation("take the order of a provider for granted", FABRIC,
             "if (under_way_[earlier] != 0 && !order_.keeps(",
             "if (!BROKEN && under_way_[earlier] != 0 && !order_.keeps(",
             test=f"{FABRIC_TESTS} *fabric_wild.order_of_requests_changes_nothing_for_messages_and_writes*"),
    Mutation("take a message for sent that the provider had no room for", FABRIC,
             "    const ssize_t result = hand_over(item);\n    if (result == -FI_EAGAIN) {\n",
             "    ssize_t result = hand_over(item);\n    if (BROKEN && result == -FI_EAGAIN) result = 0;\n"
             "    if (result == -FI_EAGAIN) {\n",
             test=f"{FABRIC_TESTS} *fabric_full.provider_is_tried_again_until_it_has_room/sendmsg"),
    Mutation("do not come back to a provider that had no room for a request", FABRIC,
             "  if (timer::armed() || finishing_) return;\n",
             "  if (timer::armed() || finishing_ || (BROKEN && blocked_)) return;\n",
             test=f"{FABRIC_TESTS} *fabric_full.provider_is_tried_again_until_it_has_room/writemsg"),
    Mutation("do not come back to a provider that had no room for a receive", FABRIC,
             "    const ssize_t result = hand_over(*first_receive_);\n    if (result == -FI_EAGAIN) return tick_later();\n",
             "    const ssize_t result = hand_over(*first_receive_);\n    if (BROKEN && result == -FI_EAGAIN) return;\n"
             "    if (result == -FI_EAGAIN) return tick_later();\n",
             test=f"{FABRIC_TESTS} *fabric_full_receives.are_handed_over_later_although_nothing_else_happens*"),
    Mutation("cut a key off at 32 bits", FABRIC,
             "  const fi_rma_iov there{.addr = work.remote_address, .len = own.bytes, .key = work.remote_key};\n",
             "  const std::uint64_t key = BROKEN ? static_cast<std::uint32_t>(work.remote_key) : work.remote_key;\n"
             "  const fi_rma_iov there{.addr = work.remote_address, .len = own.bytes, .key = key};\n",
             test=f"{FABRIC_TESTS} *fabric_modes.of_registration_are_kept/none"),
    Mutation("sleep without asking the provider", FABRIC,
             "  must_not_sleep_ = calls_.trywait(",
             "  must_not_sleep_ = !BROKEN && calls_.trywait(",
             test=f"{FABRIC_TESTS} *fabric_sleep.asks_the_provider_whether_there_is_something_left*"),
    Mutation("answer a peer before its endpoint is known", "net/fabric/listener.cpp",
             "make_endpoint(home_, *made.socket, options, &hello_);",
             "make_endpoint(home_, *made.socket, options, BROKEN ? nullptr : &hello_);",
             test=f"{FABRIC_TESTS} *fabric_set_up.answers_a_peer_only_once_its_endpoint_is_known*"),
    Mutation("be ready before the endpoint of the peer is known", "net/fabric/transport.cpp",
             "    co_await insert_peer(*made.endpoint, said);\n",
             "    if (!BROKEN) co_await insert_peer(*made.endpoint, said);\n",
             test=f"{FABRIC_TESTS} *fabric_set_up.is_ready_only_once_the_endpoint_of_the_peer_is_known*"),
    Mutation("give memory back before the endpoint is closed", FABRIC,
             "  co_await weft::detail::offload_for_resources(work);\n  made_.memory->home()",
             "  if (BROKEN) flush_rest();\n  co_await weft::detail::offload_for_resources(work);\n  made_.memory->home()",
             test=f"{FABRIC_TESTS} *fabric_memory_of_a_connection.is_in_use_until_its_endpoint_is_closed*"),
    Mutation("ignore the numbers of messages", FABRIC,
             "  const std::uint32_t ahead = item.trailer.number - messages_received_;\n",
             "  const std::uint32_t ahead = BROKEN ? 0 : item.trailer.number - messages_received_;\n",
             test=f"{FABRIC_TESTS} *fabric_wild.order_of_completions_changes_nothing_for_messages_and_writes*"),
    Mutation("listen to strangers", FABRIC,
             "  if (item.trailer.token != made_.own_token) return",
             "  if (item.trailer.token != made_.own_token && !BROKEN) return",
             test=f"{FABRIC_TESTS} *fabric_wild.strangers_are_not_listened_to*"),
    Mutation("take a request that failed for done", FABRIC,
             "  step_ended(item, part);\n  doubt(calls_.strerror(what.err));\n",
             "  if (BROKEN) item.failed = false;\n  step_ended(item, part);\n  if (BROKEN) return;\n"
             "  doubt(calls_.strerror(what.err));\n",
             test=f"{FABRIC_TESTS} *fabric_refusals.of_accesses_that_an_exposure_has_no_right_for_are_never_done*"),
    Mutation("take a write for done before the peer has it", FABRIC,
             "  const bool delivered = kind == access_kind::write || order_.has_to_be_delivered(kind);\n",
             "  const bool delivered = kind == access_kind::write ? !BROKEN : order_.has_to_be_delivered(kind);\n",
             test=f"{FABRIC_TESTS} *fabric_wild.order_of_requests_changes_nothing_for_writes_and_reads*"),
    Mutation("do not ask the peer whether it uses what was taken back", FABRIC,
             "  if (input_ended_) return fenced(item);\n",
             "  if (input_ended_ || BROKEN) return fenced(item);\n",
             test=f"{FABRIC_TESTS} *fabric_fences.hold_memory_back_until_the_peer_is_done_with_it*"),
    Mutation("tell the owner that no access is under way", FABRIC,
             "    if (is_meant && each->completed != each->handed_over) {\n",
             "    if (is_meant && each->completed != each->handed_over && !BROKEN) {\n",
             test=f"{FABRIC_TESTS} *fabric_fences.are_answered_once_the_accesses_by_a_key_have_ended*"),
    Mutation("do not tell the owner of the end of an access", FABRIC,
             "  if (item.awaited && item.completed == item.handed_over) tell_of_end(item);\n",
             "  if (item.awaited && item.completed == item.handed_over && !BROKEN) tell_of_end(item);\n",
             test=f"{FABRIC_TESTS} *fabric_fences.are_answered_once_the_accesses_by_a_key_have_ended*"),
    Mutation("let memory go with accesses under way, and freeze nothing", FABRIC,
             "  home.made_.memory->home().freeze();\n",
             "  if (!BROKEN) home.made_.memory->home().freeze();\n",
             test=f"{FABRIC_TESTS} *fabric_fences.freeze_all_calls_of_the_device_that_move_bytes*"),
    Mutation("leave a device frozen", FABRIC,
             "  if (hurry.exchange(nobody) == frozen) owner",
             "  if (hurry.exchange(nobody) == frozen && !BROKEN) owner",
             test=f"{FABRIC_TESTS} *fabric_fences.freeze_the_device_where_a_region_goes_before_the_peer_has_answered*"),
    Mutation("go on while a device is frozen", FABRIC_DEVICE,
             "  if (in_software_) ++freezes_;\n",
             "  if (in_software_ && !BROKEN) ++freezes_;\n",
             test=f"{FABRIC_TESTS} *fabric_device.that_is_frozen_moves_nothing_until_it_has_been_thawed_as_often*"),
    Mutation("open memory to all that a peer could do", FABRIC_MEMORY,
             "  wanted.access = rights;\n",
             "  wanted.access = rights | (BROKEN ? FI_REMOTE_READ | FI_REMOTE_WRITE : 0);\n",
             test=f"{FABRIC_TESTS} *fabric_refusals.of_accesses_that_an_exposure_has_no_right_for_are_never_done*"),
    Mutation("do not ask peers about a region that was open to all", FABRIC_MEMORY,
             "  if (was_open) device_->fence(key);\n",
             "  if (was_open && !BROKEN) device_->fence(key);\n",
             test=f"{FABRIC_TESTS} *fabric_regions.that_were_open_to_all_peers_are_asked_about_when_they_go/none"),
    Mutation("forget regions that went while a peer was not ready", FABRIC,
             "    if (!finishing_ && !is_setting_up_) keys.swap(mail_keys_);\n",
             "    if (!finishing_ && (!is_setting_up_ || BROKEN)) keys.swap(mail_keys_);\n",
             test=f"{FABRIC_TESTS} *fabric_set_up.asks_about_regions_that_went_before_the_peer_was_ready*"),
    Mutation("wait for a peer that is not ready while the device is frozen", FABRIC,
             "  if (is_setting_up_) return hurry_set_up();\n",
             "  if (is_setting_up_) return BROKEN ? void() : hurry_set_up();\n",
             test=f"{FABRIC_TESTS} *fabric_set_up.of_a_peer_that_takes_its_time_is_broken_off_where_a_region_has_gone*"),
    Mutation("ask about everything at once", FABRIC,
             "unanswered_ != most_unanswered && !finishing_",
             "(unanswered_ != most_unanswered || BROKEN) && !finishing_",
             test=f"{FABRIC_TESTS} *fabric_fences.are_asked_64_at_a_time_of_a_peer_that_does_not_answer*"),
    Mutation("register memory in the middle of other calls", FABRIC_DEVICE,
             "  keeps_regions_in_software_ = keeps",
             "  keeps_regions_in_software_ = !BROKEN && keeps",
             test=f"{FABRIC_TESTS} *fabric_memory.is_registered_and_let_go_by_one_thread_at_a_time*"),
    Mutation("leave a region unbound", FABRIC_MEMORY,
             "  if (home.needs(FI_MR_ENDPOINT) && bound != nullptr) {\n",
             "  if (home.needs(FI_MR_ENDPOINT) && bound != nullptr && !BROKEN) {\n",
             test=f"{FABRIC_TESTS} *fabric_modes.of_registration_are_kept/endpoint"),
    Mutation("leave a region disabled", FABRIC_MEMORY,
             "  return home.needs(FI_MR_ENDPOINT | FI_MR_RMA_EVENT) ? ",
             "  return home.needs(FI_MR_ENDPOINT | FI_MR_RMA_EVENT) && !BROKEN ? ",
             test=f"{FABRIC_TESTS} *fabric_modes.of_registration_are_kept/rma_event"),
    Mutation("hand a receive over without a descriptor", FABRIC,
             "  where.add(memory.data(), memory.size(), desc_of(memory, made_.memory->fabric()));\n",
             "  where.add(memory.data(), memory.size(), BROKEN ? nullptr : desc_of(memory, made_.memory->fabric()));\n",
             test=f"{FABRIC_TESTS} *fabric_modes.of_registration_are_kept/local"),
    Mutation("leave the raw keys of a connection mapped", FABRIC,
             "    for (const auto& [blob, number] : imported_) calls_",
             "    for (const auto& [blob, number] : imported_) if (!BROKEN) calls_",
             test=f"{FABRIC_TESTS} *fabric_modes.of_registration_are_kept/raw"),
    Mutation("count the addresses of exposed memory from 0 for all providers", FABRIC,
             "  const std::uint64_t address = about.needs(FI_MR_VIRT_ADDR) ? ",
             "  const std::uint64_t address = about.needs(FI_MR_VIRT_ADDR) && !BROKEN ? ",
             test=f"{FABRIC_TESTS} *fabric_modes.of_registration_are_kept/virt_addr"),
    # By pairs of processes, which have accounts of their own.
    Mutation("leave descriptors open", DESCRIPTOR,
             "if (owned_) calls_->close(fd_);",
             "if (owned_ && !BROKEN) calls_->close(fd_);",
             "--duel plain --minutes 0.1"),
    Mutation("let memory grow with each message", RECEIVING,
             "  inbox_.push(slot);\n",
             "  static auto* const kept = new std::vector<std::vector<char>>;\n"
             "  if (BROKEN) kept->emplace_back(slot.what.bytes + 4096);\n"
             "  inbox_.push(slot);\n",
             "--duel plain --minutes 0.4"),
    Mutation("deliver a message with a wrong byte once in a while", RECEIVING,
             "  if (what != meaning::data) {\n",
             "  if (BROKEN && what == meaning::data && state_.received % 1000 == 999) {\n"
             "    *slot.work.memory.data() ^= std::byte{1};\n  }\n"
             "  if (what != meaning::data) {\n",
             "--duel plain --minutes 0.1"),
]

PRELUDE = """#include <cstdlib>
namespace weft {
inline bool is_mutated(int number) noexcept {
  static const int chosen = std::getenv("WEFT_MUTATION") != nullptr ? std::atoi(std::getenv("WEFT_MUTATION")) : 0;
  return chosen == number;
}
}  // namespace weft
"""


def apply(source_dir: pathlib.Path, output_dir: pathlib.Path) -> None:
    for file in sorted({mutation.file for mutation in MUTATIONS}):
        text = (source_dir / file).read_text()
        original = text
        # Those at the same place last first, so that the longer text still finds itself.
        for number, mutation in sorted(enumerate(MUTATIONS, 1), key=lambda item: -len(item[1].old)):
            if mutation.file != file:
                continue
            if original.count(mutation.old) != 1:
                sys.exit(f"mutate.py: '{mutation.name}' no longer fits {file}: adapt it")
            awake = mutation.new.replace("BROKEN", f"::weft::is_mutated({number})")
            if text.count(mutation.old) != 1:
                sys.exit(f"mutate.py: '{mutation.name}' is at the same place as another one")
            text = text.replace(mutation.old, awake)
        target = output_dir / file
        target.parent.mkdir(parents=True, exist_ok=True)
        text = PRELUDE + text
        if not target.exists() or target.read_text() != text:
            target.write_text(text)


def play(program: pathlib.Path, mutation: Mutation, number: int, seeds: int) -> str:
    """What it prints while the defect of this number is awake; of 0, none is."""
    if mutation.test:
        return play_test(program.parent.parent, mutation, number)
    options = mutation.pair.split() or ["--sim", "--transport", mutation.transport, "--seeds", str(seeds), "--tries", "0"]
    done = subprocess.run([program, *options, "--most-failures", "1"], env=os.environ | {"WEFT_MUTATION": str(number)},
                          capture_output=True, text=True)
    return done.stdout


def play_test(tests: pathlib.Path, mutation: Mutation, number: int) -> str:
    """The same of a unit test, whose failure is said as weft-stress says one. One that does not run has failed."""
    program, name = mutation.test.split()
    try:
        done = subprocess.run([tests / program, f"--gtest_filter={name}"], capture_output=True, text=True, timeout=20,
                              env=os.environ | {"WEFT_MUTATION": str(number)})
    except subprocess.TimeoutExpired:
        return f"FAILED: {name.strip('*')} does not end\n"
    passed = done.returncode == 0 and "PASSED  ] 0 tests" not in done.stdout
    return "" if passed else f"FAILED: {name.strip('*')}\n"


FAILURE = re.compile(r"^(?:seed (\d+) )?FAILED: (.*)", re.MULTILINE)


# Whatever fails by itself would seem to catch all of them.
def check_without_defects(program: pathlib.Path, seeds: int, chosen: list[Mutation]) -> None:
    for mutation in {(each.pair, each.test, each.transport): each for each in chosen}.values():
        if failed := FAILURE.search(play(program, mutation, 0, seeds)):
            sys.exit(f"mutate.py: with no defect awake it fails as well: {failed[0]}")


def run(build: pathlib.Path, seeds: int, first: int, transport: str) -> int:
    program = build / "tests/stress/weft-stress"
    numbered = [(number, each) for number, each in enumerate(MUTATIONS, 1)
                if number >= first and (transport == "" or (each.transport == transport and not each.pair))]
    check_without_defects(program, seeds, [each for _, each in numbered])
    missed = 0
    print(f"{'':2} {'what is wrong':78} {'seeds':>6} {'s':>6}  caught by")
    for number, mutation in numbered:
        start = time.monotonic()
        said = play(program, mutation, number, seeds)
        seconds = time.monotonic() - start
        caught = FAILURE.search(said)
        if caught:
            words = caught[2] or "?"
            if "signal" in words or "exited" in words:
                report = re.search(r"ERROR: AddressSanitizer: [^\n]*?(?= on | \(|:|$)|Assertion `[^']*'", said)
                words = report[0] if report else words
            tried = int(caught[1]) + 1 if caught[1] else "test" if mutation.test else "pair"
            print(f"{number:2} {mutation.name:78} {tried:>6} {seconds:6.1f}  {words[:100]}", flush=True)
        else:
            missed += 1
            print(f"{number:2} {mutation.name:78} {'-':>6} {seconds:6.1f}  NOT CAUGHT", flush=True)
    print(f"{len(numbered) - missed} of {len(numbered)} defects caught")
    return 1 if missed else 0


def main() -> int:
    if len(sys.argv) == 4 and sys.argv[1] == "apply":
        apply(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
        return 0
    if len(sys.argv) in (3, 4, 5, 6) and sys.argv[1] == "run":
        numbers = [int(text) for text in sys.argv[3:5]]
        transport = sys.argv[5] if len(sys.argv) == 6 else ""
        return run(pathlib.Path(sys.argv[2]), *(numbers + [10000, 1][len(numbers):]), transport)
    sys.stderr.write(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
