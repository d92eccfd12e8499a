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

A defect has a row in the table below and a mark in the sources: the comment `// mutant: WORDS` on a line of the
statement that it changes, or alone on the line before. WORDS are some of its name that no other name has. The mark
moves with the code; the row says what is wrong, what happens while the defect is awake, and who catches it:

    NAME: ACTION [when CONDITION] [by PROGRAM TEST | by OPTIONS of weft-stress]    (otherwise simulated seeds do)

never, always    the condition of the statement is false, or true: that of an if or a while, or what stands before a '?'
skip             the statement is not executed
before CODE      CODE runs before it
after CODE       CODE runs after it
instead CODE     CODE runs in its place
[PART] -> VALUE  VALUE is taken for PART of the statement; without PART for all that it assigns or returns
$                in CODE the statement, in VALUE the part that it is taken for
"""

import os
import pathlib
import re
import subprocess
import sys
import time
from typing import NamedTuple

TABLE = r"""
drop a completion: never when is_idle() && state_.sent % 4 == 3
resume a waiter before the transport lets go of its memory: is_sent -> true when first.gathered_
complete a read before its response: after requests_.front().answered_ = true
    when is_sent && first.kind == request_kind::read && first.next_ == nullptr
notify the peer of a list with its first element: place + 1 == size() -> place == 0
count an element of a list as done that has failed: always
end a list that was stopped before its elements have: under_way_ == 0 -> under_way_ <= 1
post elements of a list beyond what the peer has room for: never when free_ != nullptr
free the buffer of a stopped operation early: skip
keep the pin of a buffer after its operation: after record.pin = std::move(waiter->pin_)
keep a region pinned after its operation: skip
skip the bounds check of a peer's access: never
skip the check of rights: never
let a connection use another one's key: never
leave a key that was taken back: skip
leave the keys of a connection that ends: skip
do not count the messages that writes bring against the credits: never when item.kind_ == transfer_kind::write
send one message more than there are credits: has_credit() -> state_.sent != state_.sendable + 1U
never offer credits: always
forget to go on when credits come: skip
let a later operation overtake one that waits: instead waiting_.push_front(item)
send again what a short send had sent: bytes -> 0
take bytes in place for bytes in the staging area: placed -> placed / 2
forget to say that no more will come: skip
forget who waits to send when a connection ends: skip
forget who waits to receive when a connection ends: skip
close without telling the peer: never
close before what was posted has gone: out_.is_idle() -> true
yield what a word holds after an atomic operation: -> apply(asked, seen)
execute an atomic operation on its arrival, ahead of earlier reads, and again: after std::uint64_t ignored = 0;
    static_cast<void>(host_.remote_atomic(asked, ignored))
hand a shared receive to a connection that has gone: never
lose the wake-up of a connection that waits for a receive: always
lose a credit when a receiver is stopped: after --state_.receivable when state_.received % 3 == 2
forget timers that are due together: skip when count == 1
leave who waits for a buffer when one comes back: skip
take an FPDU for whole that was damaged on its way: always
send what may have changed since its checksum was taken: -> false
    by unit/iwarp_tests *engine.a_source_that_peers_may_change_is_sent_as_it_was_checked*
lose an arena that was given back: before static_cast<void>(memory_.release())
lose the wake-up of another executor: skip when current_ != nullptr
stop a task of another executor on this one: instead stop()
resume who waits for another executor over there: home().submit(home_mail_) -> come_home()
serve who waits for a buffer on another executor without waking it: always when executor_core::current() != nullptr
leave what another executor keeps at hand while somebody waits for it: before return
    when executor_core::current() != nullptr && !home_.on_own_thread()
leave the key of what another executor drops: before key_ = 0
close a connection on the executor that drops it: always
forget that another executor has closed a listener: before return when !executor_.belongs_to_this_thread()
do not look into a completion queue again once it is armed: before return 0 when armed_
leave the events of a completion queue unacknowledged: never
reserve room for one completion of a connection: -> 1U
leave an event of the connection manager unacknowledged: skip when what.type == RDMA_CM_EVENT_ESTABLISHED
leave an event about a queue pair unacknowledged: skip
destroy a queue pair before its windows: before destroy_pair() when pair_ != nullptr
send more inline than the queue pair takes: endpoint_.max_inline_bytes() -> $ + 16
leave the last request before a doorbell unsignaled: skip
complete a request twice: after $ when mark % 4 == 3
take a request that was flushed for one that is done: always when status == IBV_WC_WR_FLUSH_ERR
end the requests of a queue pair before they are flushed: after requests_.flush(); receives_.flush(life_.events())
forget what a read or an atomic operation yields in the staging area: never
forget the receives that came before the link: skip
destroy a queue pair that has taken a shared receive: skip
keep a window that was taken back: always
bind a window to more than was lent: memory.size() -> $ + 1
offer a peer no rights to read: IBV_ACCESS_REMOTE_READ -> 0
lose the wake-up of a set-up: skip
notice no dead peer on an idle connection: before return
speak first on a connection that an RNIC has accepted: before listens_first_ = false
post the receives of a connection after it was accepted: skip
read into memory that is not open to writes of peers: never
flush into memory that is not open to writes of peers: never
read into more parts than an RNIC takes: most <= 0 -> true
take all before a completed request for done where they end in any order: never
have requests not tell of themselves where they end in any order: endpoint_.home().traits().completes_in_order -> true
have the sends of an RNIC wait for a receiver that has gone: always when before.takes_receive
wait for the first message of a peer that has gone: awaits_message -> false
share the receives of an RNIC's connections: never
promise immediate data that an RNIC has not: device_->traits().has_write_immediate -> true
promise atomic operations that the device has not: device_->traits().has_atomics -> true
promise to revoke a key that no peer can: -> true
lend to all peers, which nobody has allowed: never
bind a window of type 1 ahead of what was to be posted before: skip
read on Soft-RoCE behind what may be repeated: asks(before) -> true
bind windows through a queue pair that is not to bind any: never
publish a piece before its bytes are written: before header.bytes = static_cast<std::uint32_t>(piece.size());
    output_.put(header); output_.publish();
    if (!gather(*domain_, *item.work, 0, piece)) return false; item.moved = piece.size(); continue when item.moved == 0
publish after looking whether the peer sleeps: instead wake_other(); $; return
wake nobody who waits for room: skip
let an executor sleep without telling the peers of its connections: skip
leave an idle end to its socket without telling its peer: skip
leave an end that went cold out when its socket says something: instead return
leave a message that waited for a receive where it is: skip
go on at the beginning of the ring without a word: skip
count one line more in the ring than there is: -> $ + cache_line
let the peer write where a record is still being read: before ring_reader ahead = reader_;
    ahead.advance(ring_bytes_of(header.bytes)); ahead.release(); output_.wake_other() when header.bytes > 64 && !receives_.is_stalled()
complete a write with its first piece: after item.done = true
complete a read with the first part of its answer: never
write each piece where the first one went: moved_ -> 0
answer the last question first: after std::swap(answers_[begin_], answers_[(begin_ + count_ - 1)
    % answers_.size()]) when answers_[begin_].moved == 0
change a word when that is asked for, and again with the answer: after std::uint64_t ignored = 0;
    static_cast<void>(shared_.keys().atomic({.operation = software::atomic_operation::fetch_add, .stag = asked.key,
    .offset = asked.address, .operand = asked.operands.operand}, ignored, id_))
    when header.kind == record_kind::fetch_add
ask one question more than was agreed on: capabilities_.outgoing_reads -> $ + 1
forget what a peer had published before its end: instead break_off(make_error(errc::peer_vanished, "it has gone"))
    when life_.peer_has_left()
do not notice that a process has died: skip
leave a key that was taken back, in shared memory: skip
leave the keys of a connection that ends, in shared memory: skip
use directly what its owner has taken back: never
leave a peer's way open when its memory is released: skip
use memory directly ahead of what its owner is to execute before: always
take a fence for answered once it has been asked for: after gate_.is_behind = false; moved_ = postponed when fencing_
forget to answer a fence: -> false
answer no fence after having finished: before return true when around_.life.has_finished()
    by unit/shm_link_tests *direct_order.is_told_of_by_an_end_that_has_finished*
keep memory mapped that its owner wants back: skip
take a large direct transfer for done with its first part: -> true
write directly, and say nothing of immediate data: never
change a word directly, and ask its owner to do it again: after return outcome::shut
write directly what may only be read: (rights & needed) == 0 -> false
use memory directly beyond what was lent: never
go on over another rail before the peer has fenced the one that is over: !its.is_answered -> false
say that a rail is fenced before it is closed: instead if (out_ != nullptr) { control early = said; early.kind =
    control_kind::fenced; early.number = incoming_.count(); incoming_.receive_over(&over); return out_->send(early); }
let a rail begin that was fenced before it was there: epoch > its.shut_epoch -> true
    by rails/rails_tests *counts_none_that_the_peer_had_given_up_before_this_end_had_it*
do not wait for what has come over the rail that carried messages: skip
go on to receive over the rail that has carried messages: never
lose what a device has taken before its rail ended: -> false
    by rails/simulated_rails_tests *bring_what_a_device_has_taken_before_its_queue_pair_ended*
never take a rail back: skip
keep what a peer has exposed without bound: never
    by rails/rails_tests *resumption.a_peer_that_exposes_more_than_this_end_allows_is_told_so*
blame the peer for damage on the way: -> false
    by rails/rails_tests *damaged_rails.are_lost_alone_when_a_bit_is_flipped_on_the_way/1000
keep the key of a rail that has ended: never
revoke the key of one rail alone: before continue when i != 0
wait for rails for ever: never
forget that the end of a connection was said over a rail that is over: skip
    by rails/rails_tests *of_a_closed_connection_is_not_waited_for_although_its_last_word_was_lost*
count words that only confirm others: always
do an atomic operation again whose answer was lost: each->is_atomic() -> false
read again what may have been changed meanwhile: before continue
    by rails/rails_tests *a_read_whose_rail_ends_is_done_again_unless_what_was_issued_behind_it_may*
send again what has come: never
take what was not asked about for arrived: number == 0 -> true
    by rails/rails_tests *a_message_behind_a_question_is_not_taken_for_arrived_by_the_answer*
count a message as lost twice: never
complete a write that is spread once one rail has confirmed it: always
move no slice again that had left: instead each->first_over[which.number()] = entry::nowhere
spread a transfer ahead of what was posted before: never
spread two transfers of the same memory side by side: never
revoke memory while the peer is inside: always
    by unit/shm_link_tests *lent_to_hostile.peers_is_not_revoked_before_they_are_outside*
end a connection while the peer is inside of what it was lent: always
    by unit/shm_link_tests *lent_to_hostile.peers_is_not_given_back_by_the_end_of_the_connection_before_they_are_outside*
map a file for direct access that can become shorter: never
    by unit/shm_link_tests *hostile_offer.of_a_file_that_can_become_shorter*
map more of a file than there is: never by unit/shm_link_tests *hostile_offer.of_more_than_there_is*
use memory directly ahead of the answers to reads: never
    by unit/shm_link_tests *direct_order.waits_for_answers_to_reads_of_other_memory*
offer a second file before the first one is answered: unanswered_ -> false
    by unit/shm_link_tests *lent_to_hostile.peers_are_offered_nothing_before_they_have_answered*
take an offer whose file there is no descriptor for as a breach of the rules: is_lost -> false
    by unit/shm_link_tests *is_used_by_way_of_the_owner_where_there_is_no_descriptor_left_for_it*
send at once no more than the first bytes of a message or write: memory.size() -> std::min<std::size_t>(4, $)
forget a write that was sent at once, and use memory directly ahead of it: skip
    by unit/shm_link_tests *direct_order.waits_for_what_the_owner_has_been_asked_for_before*
use memory directly at once, ahead of what the owner has yet to do: never
    by unit/shm_link_tests *direct_order.waits_for_what_the_owner_has_been_asked_for_before*
go on ahead of tasks whose operations have completed before: instead return taken::ended
    when !home_.has_resumed(last_)
    by --sim --transport shm --seeds 400
use prepared memory ahead of what the owner has been asked for: gate.is_behind -> false
    by unit/shm_link_tests *direct_order.of_prepared_memory_is_that_of_all_operations*
use prepared memory after its loan has ended: never
    by unit/shm_link_tests *direct_order.of_prepared_memory_ends_with_its_loan*
use a place that has been given back: skip
    by unit/shm_link_tests *direct_order.of_prepared_memory_uses_no_place_that_was_given_back*
use prepared memory beyond its end: local.size() > place.bytes - offset_ -> false
    by unit/shm_link_tests *direct_memory.that_is_prepared_ends_where_it_ends*
let an end go cold whose tasks take its messages between its polls: skip
    by unit/shm_link_tests *is_not_asked_for_by_an_end_whose_tasks_take_messages_between_its_polls*
send a small message at once without a credit: never by --sim --transport shm --seeds 400
send a message at once ahead of those that were posted, over TCP: requests_.empty() -> true
    by unit/iwarp_tests *send_small_messages_at_once_behind*
let small messages keep responses from ever being sent, over TCP: never
    by unit/iwarp_tests *send_nothing_at_once_while_a_response_is_due*
give no credit for a message that is taken out of the ring: skip by --sim --transport shm --seeds 400
take a message out of the ring ahead of those that arrived before: inbox_.empty() -> true by --sim --transport shm --seeds 400
take a message out of the ring before all of it is there: -> true
    by unit/shm_link_tests *with_a_message_that_is_cut_off_where_a_task_asks_for_it*
do not look behind the last message of a peer that has left, once a task has taken it: skip
    by unit/shm_link_tests *that_has_died_has_left_messages_for_which_there_was_no_receive*
store a message beyond the end of the memory that was given for it: content.size() > target.size() -> false
    by --sim --transport shm --seeds 400
keep the region of a receive when its receive has ended: skip by --sim --transport shm --seeds 400
go on in the ring where a direct write was interrupted: skip
    by unit/shm_link_tests *direct_order.of_a_large_write_that_is_interrupted_is_that_of_a_new_one*
believe a payload whose sender has let go of it: -> true
    by unit/shm_link_tests *hostile_far_payload.that_was_let_go_of_is_not_believed*
copy out of whatever process has the number: always
    by unit/shm_link_tests *hostile_far_payload.whose_process_is_another_by_now_is_not_believed*
take a peer's word for its proof: copy({}, {}, 0) == 0 -> $ || true
    by unit/shm_link_tests *hostile_far_payload.with_a_proof_that_is_none_is_declined*
take a payload for copied with its first part: never
    by unit/shm_link_tests *far_payload.arrives_as_it_was_and_in_its_place_among_others*
take the order of a provider for granted: never
    by unit/fabric_tests *fabric_wild.order_of_requests_changes_nothing_for_messages_and_writes*
take a message for sent that the provider had no room for: -> [](ssize_t got) { return got == -FI_EAGAIN ? 0 : got; }($)
    by unit/fabric_tests *fabric_full.provider_is_tried_again_until_it_has_room/sendmsg
do not come back to a provider that had no room for a request: always when blocked_
    by unit/fabric_tests *fabric_full.provider_is_tried_again_until_it_has_room/writemsg
do not come back to a provider that had no room for a receive: tick_later() -> void()
    by unit/fabric_tests *fabric_full_receives.are_handed_over_later_although_nothing_else_happens*
cut a key off at 32 bits: work.remote_key -> static_cast<std::uint32_t>($)
    by unit/fabric_tests *fabric_modes.of_registration_are_kept/none
sleep without asking the provider: -> false
    by unit/fabric_tests *fabric_sleep.asks_the_provider_whether_there_is_something_left*
answer a peer before its endpoint is known: &hello_ -> nullptr
    by unit/fabric_tests *fabric_set_up.answers_a_peer_only_once_its_endpoint_is_known*
be ready before the endpoint of the peer is known: skip
    by unit/fabric_tests *fabric_set_up.is_ready_only_once_the_endpoint_of_the_peer_is_known*
give memory back before the endpoint is closed: before requests_.flush(life_.events()); receives_.flush(life_.events())
    by unit/fabric_tests *fabric_memory_of_a_connection.is_in_use_until_its_endpoint_is_closed*
ignore the numbers of messages: -> 0
    by unit/fabric_tests *fabric_wild.order_of_completions_changes_nothing_for_messages_and_writes*
listen to strangers: never by unit/fabric_tests *fabric_wild.strangers_are_not_listened_to*
take a request that failed for done: instead request.failed = false; $; return
    by unit/fabric_tests *fabric_refusals.of_accesses_that_an_exposure_has_no_right_for_are_never_done*
take a write for done before the peer has it: -> false when kind == access_kind::write
    by unit/fabric_tests *fabric_wild.order_of_requests_changes_nothing_for_writes_and_reads*
do not ask the peer whether it uses what was taken back: always
    by unit/fabric_tests *fabric_fences.hold_memory_back_until_the_peer_is_done_with_it*
tell the owner that no access is under way: never
    by unit/fabric_tests *fabric_fences.are_answered_once_the_accesses_by_a_key_have_ended*
do not tell the owner of the end of an access: never
    by unit/fabric_tests *fabric_fences.are_answered_once_the_accesses_by_a_key_have_ended*
let memory go with accesses under way, and freeze nothing: skip
    by unit/fabric_tests *fabric_fences.freeze_all_calls_of_the_device_that_move_bytes*
leave a device frozen: never
    by unit/fabric_tests *fabric_fences.freeze_the_device_where_a_region_goes_before_the_peer_has_answered*
go on while a device is frozen: never
    by unit/fabric_tests *fabric_device.that_is_frozen_moves_nothing_until_it_has_been_thawed_as_often*
open memory to all that a peer could do: -> $ | FI_REMOTE_READ | FI_REMOTE_WRITE
    by unit/fabric_tests *fabric_refusals.of_accesses_that_an_exposure_has_no_right_for_are_never_done*
do not ask peers about a region that was open to all: never
    by unit/fabric_tests *fabric_regions.that_were_open_to_all_peers_are_asked_about_when_they_go/none
forget regions that went while a peer was not ready: before static_cast<void>(mail_.take()) when is_setting_up_
    by unit/fabric_tests *fabric_set_up.asks_about_regions_that_went_before_the_peer_was_ready*
wait for a peer that is not ready while the device is frozen: hurry_set_up() -> void()
    by unit/fabric_tests *fabric_set_up.of_a_peer_that_takes_its_time_is_broken_off_where_a_region_has_gone*
ask about everything at once: unanswered_ == most_unanswered -> false
    by unit/fabric_tests *fabric_fences.are_asked_64_at_a_time_of_a_peer_that_does_not_answer*
register memory in the middle of other calls: -> false
    by unit/fabric_tests *fabric_memory.is_registered_and_let_go_by_one_thread_at_a_time*
leave a region unbound: never by unit/fabric_tests *fabric_modes.of_registration_are_kept/endpoint
leave a region disabled: never by unit/fabric_tests *fabric_modes.of_registration_are_kept/rma_event
hand a receive over without a descriptor: desc_of(memory, domain_.fabric()) -> nullptr
    by unit/fabric_tests *fabric_modes.of_registration_are_kept/local
count the addresses of exposed memory from 0 for all providers: never
    by unit/fabric_tests *fabric_modes.of_registration_are_kept/virt_addr
trust what a change under way may have ended: -> true
    by unit/mr_tests *monitored_cache.leases_nothing_of_memory_whose_end_the_monitor_has_not_read_yet*
leave descriptors open: never by --duel plain --minutes 0.1
let memory grow with each message: before static auto* const kept = new std::vector<std::vector<char>>;
    kept->emplace_back(what.bytes + 65536) by --duel plain --minutes 0.4
deliver a message with a wrong byte once in a while: after *oldest.memory.data() ^= std::byte{1}
    when state_.received % 100 == 99 by --duel plain --minutes 0.1
"""


class Defect(NamedTuple):
    number: int
    name: str  # what is wrong
    action: str
    condition: str
    pair: str  # the options of weft-stress that catch it; otherwise simulated seeds do
    test: str  # or the test that does, and its program: where only a hostile peer would, or seeds hardly ever
    file: str = ""
    begin: int = 0  # of the statement in the file
    end: int = 0

    @property
    def transport(self) -> str:
        found = re.match("net/(verbs|shm|rails|fabric)/", self.file)
        return found[1] if found else "iwarp"


class Misfit(Exception):
    """Why a row and its mark do not fit each other, or one is without the other."""


def read_table() -> list[Defect]:
    form = re.compile(r"([^:]+): (.+?)(?: when (.+?))?(?: by (?:(--.+)|(\S+ \S+)))?")
    rows = [form.fullmatch(row) or row for row in re.sub(r"\n +", " ", TABLE.strip()).splitlines()]
    for number, row in enumerate(rows):
        if isinstance(row, str) or row[1] in [before[1] for before in rows[:number]]:
            raise Misfit(f"'{row if isinstance(row, str) else row[1]}' is no row, or one more of that name")
    return [Defect(number, *(part or "" for part in row.groups())) for number, row in enumerate(rows, 1)]


def code_of(text: str) -> str:
    """The text with blanks in place of comments, and nothing in its strings that looks like code."""
    hidden = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""", re.DOTALL)
    return hidden.sub(lambda it: (" " if it[0][0] == "/" else "_") * len(it[0]), text)


def find_outside(code: str, what: str) -> int:
    """Where it is outside of all brackets, or -1."""
    depth = 0
    for place, letter in enumerate(code):
        if depth == 0 and code.startswith(what, place):
            return place
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0:
            break
    return -1


def is_statement(code: str) -> bool:
    return code[-1:] in (";", "{") and find_outside(code[:-1] + ";", ";") == len(code) - 1


def find_statement(code: str, mark: int) -> tuple[int, int]:
    """From its begin to its ';', or to the '{' of its block."""
    line = code.rfind("\n", 0, mark) + 1
    before = re.match(r".*[;{}:] *\n", code[:line], re.DOTALL)
    begin = mark if not code[line:mark].strip() else before.end() if before else 0
    begin += len(re.match(r"\s*(} )?", code[begin:])[0])
    for last in re.finditer(r"[;{](?= *\n)", code[line:]):
        if is_statement(code[begin:line + last.end()]):
            return begin, line + last.end()
    raise Misfit("it marks no statement")


def find_value(code: str) -> tuple[int, int]:
    """What a statement returns or assigns."""
    begin = 7 if code.startswith("return ") else find_outside(code, " = ") + 3
    if begin == 2 or code[-1] != ";":
        raise Misfit("the statement returns and assigns nothing")
    return begin + len(re.match(r"\s*", code[begin:])[0]), len(code) - 1


def find_condition(code: str) -> tuple[int, int]:
    if head := re.match(r"(?:else )?(?:if|while) \(", code):
        end = head.end() + find_outside(code[head.end():], ")")
        return end - len(code[head.end():end].rpartition(";")[2].lstrip()), end
    begin, _ = find_value(code)
    end = begin + find_outside(code[begin:], " ? ")
    if end < begin:
        raise Misfit("the statement has no condition")
    return begin, end


def find_part(own: str, code: str, part: str) -> tuple[int, int]:
    words = re.compile(re.sub(r"^\b|\b$", r"\\b", re.escape(part)))
    found = [each.span() for each in words.finditer(own) if code[each.start()] != " "]
    if len(found) != 1:
        raise Misfit(f"the statement has '{part}' {len(found)} times")
    return found[0]


def on_one_line(text: str) -> str:
    return " ".join(re.sub("//.*", "", text).split())


def woken(defect: Defect, text: str) -> list[tuple[int, str]]:
    """What is inserted into the text of its file, and where."""
    own = text[defect.begin:defect.end]
    code = code_of(own).replace("\n", " ")
    awake = f"::weft::is_mutated({defect.number})"
    if defect.condition:
        awake = f"({awake} && ({defect.condition}))"
    verb, _, what = defect.action.partition(" ")
    aside = f"if ({awake}) {{ {what.replace('$', on_one_line(own[:-1]))}; }}"
    begins = re.match(r"(?!(else|case|default)\b)", code)
    ends = own[-1] == ";" and not re.match(r"\s*else\b", code_of(text[defect.end:defect.end + 500]))
    inside = re.fullmatch(r"(?:(.+) )?-> (.+)", defect.action)
    if inside:
        begin, end = find_part(own, code, inside[1]) if inside[1] else find_value(code)
        value = inside[2].replace("$", f"({on_one_line(own[begin:end])})")
        places = {begin: f"({awake} ? {value} : ", end: ")"}
    elif defect.action in ("never", "always"):
        begin, end = find_condition(code)
        places = {begin: "(", end: f") && !{awake}" if verb == "never" else f") || {awake}"}
    elif defect.action == "skip" and begins and ends:
        places = {0: f"if (!{awake}) "}
    elif verb == "before" and what and begins:
        places = {0: f"{aside} "}
    elif verb == "after" and what and ends:
        places = {len(own): f" {aside}"}
    elif verb == "instead" and what and begins and ends:
        places = {0: f"{aside} else "}
    else:
        raise Misfit(f"'{defect.action}' does nothing to such a statement")
    return [(defect.begin + place, inserted) for place, inserted in places.items()]


def find_all(source_dir: pathlib.Path) -> tuple[list[Defect], dict[str, str]]:
    """The defects with their places, and the texts of the sources that have some."""
    defects, texts = read_table(), {}
    for path in sorted(path for layer in ("runtime", "mr", "net") for path in (source_dir / layer).rglob("*.cpp")):
        text, file, taken = path.read_text(), str(path.relative_to(source_dir)), set()
        code = code_of(text) if "// mutant: " in text else ""
        for mark in re.finditer(r"// mutant: (.+)", text):
            texts[file] = text
            named = ([each for each in defects if each.name == mark[1]] or
                     [each for each in defects if mark[1] in each.name])
            try:
                if len(named) != 1:
                    raise Misfit(f"{len(named)} defects have it in their names")
                if named[0].file:
                    raise Misfit("it has another mark")
                begin, end = find_statement(code, mark.start())
                placed = defects[named[0].number - 1] = named[0]._replace(file=file, begin=begin, end=end)
                places = {place for place, _ in woken(placed, text)}
                if taken & places:
                    raise Misfit("another defect is woken at the same place")
                taken |= places
            except Misfit as misfit:
                line = text.count("\n", 0, mark.start()) + 1
                raise Misfit(f"{file}:{line}: '{mark[1]}': {misfit}") from misfit
    for each in defects:
        if not each.file:
            raise Misfit(f"'{each.name}' has no mark in the sources")
    return defects, texts


# #line: a line has the number that it has in the source.
PRELUDE = """#include <cstdlib>
#ifndef WEFT_MUTATED
#define WEFT_MUTATED
namespace weft {
inline bool is_mutated(int number) noexcept {
  static const int chosen = std::getenv("WEFT_MUTATION") != nullptr ? std::atoi(std::getenv("WEFT_MUTATION")) : 0;
  return chosen == number;
}
}  // namespace weft
#endif
#line 1
"""


def apply(source_dir: pathlib.Path, output_dir: pathlib.Path) -> None:
    defects, texts = find_all(source_dir)
    for stale in set(output_dir.rglob("*.cpp")) - {output_dir / file for file in texts}:
        stale.unlink()
    for file, text in texts.items():
        inserted = [each for defect in defects if defect.file == file for each in woken(defect, text)]
        for place, what in sorted(inserted, key=lambda each: -each[0]):
            text = text[:place] + what + text[place:]
        target = output_dir / file
        target.parent.mkdir(parents=True, exist_ok=True)
        text = PRELUDE + text
        if not target.exists() or target.read_text() != text:
            target.write_text(text)


def play(program: pathlib.Path, defect: Defect, number: int, seeds: int) -> str:
    """What it prints while the defect of this number is awake; of 0, none is."""
    if defect.test:
        return play_test(program.parent.parent, defect, number)
    options = defect.pair.split() or ["--sim", "--transport", defect.transport, "--seeds", str(seeds), "--tries", "0"]
    done = subprocess.run([program, *options, "--most-failures", "1"], env=os.environ | {"WEFT_MUTATION": str(number)},
                          capture_output=True, text=True)
    return done.stdout


def play_test(tests: pathlib.Path, defect: Defect, number: int) -> str:
    """The same of a unit test, whose failure is said as weft-stress says one. One that does not run has failed."""
    program, name = defect.test.split()
    try:
        done = subprocess.run([tests / program, f"--gtest_filter={name}"], capture_output=True, text=True, timeout=20,
                              env=os.environ | {"WEFT_MUTATION": str(number)})
    except subprocess.TimeoutExpired:
        return f"FAILED: {name.strip('*')} does not end\n"
    passed = done.returncode == 0 and "PASSED  ] 0 tests" not in done.stdout
    return "" if passed else f"FAILED: {name.strip('*')}\n"


FAILURE = re.compile(r"^(?:seed (\d+) )?FAILED: (.*)", re.MULTILINE)


# Whatever fails by itself would seem to catch all of them.
def check_without_defects(program: pathlib.Path, seeds: int, chosen: list[Defect]) -> None:
    for defect in {(each.pair, each.test, each.transport): each for each in chosen}.values():
        if failed := FAILURE.search(play(program, defect, 0, seeds)):
            raise Misfit(f"with no defect awake it fails as well: {failed[0]}")


def run(build: pathlib.Path, seeds: int, first: int, transport: str) -> int:
    program = build / "tests/stress/weft-stress"
    defects, _ = find_all(pathlib.Path(__file__).resolve().parents[2])
    chosen = [each for each in defects
              if each.number >= first and (transport == "" or (each.transport == transport and not each.pair))]
    check_without_defects(program, seeds, chosen)
    missed = 0
    print(f"{'':2} {'what is wrong':78} {'seeds':>6} {'s':>6}  caught by")
    for defect in chosen:
        start = time.monotonic()
        said = play(program, defect, defect.number, seeds)
        seconds = time.monotonic() - start
        caught = FAILURE.search(said)
        if caught:
            words = caught[2] or "?"
            if "signal" in words or "exited" in words:
                report = re.search(r"ERROR: AddressSanitizer: [^\n]*?(?= on | \(|:|$)|Assertion `[^']*'", said)
                words = report[0] if report else words
            tried = int(caught[1]) + 1 if caught[1] else "test" if defect.test else "pair"
        else:
            missed += 1
            tried, words = "-", "NOT CAUGHT"
        print(f"{defect.number:2} {defect.name:78} {tried:>6} {seconds:6.1f}  {words[:100]}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} defects caught")
    return 1 if missed else 0


def main() -> int:
    try:
        if len(sys.argv) == 4 and sys.argv[1] == "apply":
            apply(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
            return 0
        if len(sys.argv) in (3, 4, 5, 6) and sys.argv[1] == "run":
            numbers = [int(text) for text in sys.argv[3:5]]
            transport = sys.argv[5] if len(sys.argv) == 6 else ""
            return run(pathlib.Path(sys.argv[2]), *(numbers + [10000, 1][len(numbers):]), transport)
    except Misfit as misfit:
        sys.exit(f"mutate.py: {misfit}")
    sys.stderr.write(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
