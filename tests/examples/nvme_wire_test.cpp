// SPDX-License-Identifier: Apache-2.0
// The bytes of NVMe over Fabrics, as the example nvme writes and reads them. What is expected is written down here by
// hand from the specifications, so that an offset that is wrong on both ways is noticed.
#include <weft/runtime/error.hpp>

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include <nvme/bytes.hpp>
#include <nvme/command.hpp>
#include <nvme/fabrics.hpp>
#include <nvme/identify.hpp>
#include <nvme/status.hpp>

namespace nvme {
namespace {

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int each : values) bytes.push_back(static_cast<std::byte>(each));
  return bytes;
}

std::vector<std::byte> part(std::span<const std::byte> bytes, std::size_t offset, std::size_t count) {
  const auto found = bytes.subspan(offset, count);
  return {found.begin(), found.end()};
}

std::vector<std::byte> text(std::string_view what, std::size_t width, char filler) {
  std::string padded(what);
  padded.resize(width, filler);
  const auto bytes = std::as_bytes(std::span(padded));
  return {bytes.begin(), bytes.end()};
}

template <class Call>
std::error_code code_of(const Call& call) {
  try {
    call();
  } catch (const weft::error& why) {
    return why.code();
  }
  return {};
}

TEST(nvme_command, a_read_has_the_bytes_that_the_specification_wants) {
  command what;
  what.opcode = static_cast<std::uint8_t>(io_opcode::read);
  what.id = 0x1234;
  what.nsid = 7;
  what.data = {
      .type = sgl_type::host_memory_invalidate, .address = 0x1122334455667788, .length = 0x010203, .key = 0xa1b2c3d4};
  put(what, block_fields{.first = 0x0102030405060708, .count = 8, .force_unit_access = true});
  std::array<std::byte, command_bytes> wire;
  encode(what, wire);
  EXPECT_EQ(part(wire, 0, 8), bytes_of({0x02, 0x40, 0x34, 0x12, 7, 0, 0, 0}));
  EXPECT_EQ(part(wire, 24, 16), bytes_of({0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,  //
                                          0x03, 0x02, 0x01, 0xd4, 0xc3, 0xb2, 0xa1, 0x4f}));
  EXPECT_EQ(part(wire, 40, 12), bytes_of({8, 7, 6, 5, 4, 3, 2, 1, 7, 0, 0, 0x40}));
  EXPECT_EQ(decode_command(wire), what);
  EXPECT_EQ(blocks_of(what).first, 0x0102030405060708U);
  EXPECT_EQ(blocks_of(what).count, 8U);
  EXPECT_TRUE(blocks_of(what).force_unit_access);
}

TEST(nvme_command, data_in_the_capsule_have_an_offset_and_a_length_of_four_bytes) {
  command what;
  what.data = {.type = sgl_type::in_capsule, .address = 16, .length = 0x01000000, .key = 0};
  std::array<std::byte, command_bytes> wire;
  encode(what, wire);
  EXPECT_EQ(part(wire, 24, 16), bytes_of({16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1}));
  EXPECT_EQ(decode_command(wire), what);
}

TEST(nvme_command, a_block_count_of_sixteen_bits_never_wraps) {
  command what;
  what.dwords[2] = 0xffff;
  EXPECT_EQ(blocks_of(what).count, 65536U);
  put(what, block_fields{.count = 65536});
  EXPECT_EQ(blocks_of(what).count, 65536U);
}

TEST(nvme_command, one_that_is_cut_short_is_malformed) {
  const std::array<std::byte, command_bytes> whole{};
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_EQ(code_of([&] { static_cast<void>(decode_command(std::span(whole).first(size))); }), weft::errc::malformed);
}

TEST(nvme_command, a_key_takes_no_more_than_three_bytes_of_length) {
  command what;
  what.data.length = max_keyed_bytes + 1;
  std::array<std::byte, command_bytes> wire;
  EXPECT_EQ(code_of([&] { encode(what, wire); }), weft::errc::out_of_range);
}

TEST(nvme_command, any_64_bytes_can_be_read_and_written_again) {
  std::mt19937 random(1);
  for (int round = 0; round < 10'000; ++round) {
    std::array<std::byte, command_bytes> wire;
    for (std::byte& each : wire) each = static_cast<std::byte>(random());
    const command first = decode_command(wire);
    encode(first, wire);
    EXPECT_EQ(decode_command(wire), first);
    static_cast<void>(connect_of(first));
    static_cast<void>(log_of(first));
    static_cast<void>(dataset_of(first));
  }
}

TEST(nvme_command, connect_has_its_fields_where_a_kernel_looks_for_them) {
  command what;
  what.opcode = fabrics_opcode;
  what.nsid = static_cast<std::uint32_t>(fabrics_type::connect);
  put(what, connect_fields{.format = 0, .queue_id = 3, .queue_size = 127, .attributes = 4, .keep_alive_ms = 15000});
  std::array<std::byte, command_bytes> wire;
  encode(what, wire);
  EXPECT_EQ(wire[4], std::byte{1});
  EXPECT_EQ(part(wire, 40, 12), bytes_of({0, 0, 3, 0, 127, 0, 4, 0, 0x98, 0x3a, 0, 0}));
  EXPECT_EQ(connect_of(what).queue_id, 3);
  EXPECT_EQ(connect_of(what).keep_alive_ms, 15000U);
}

TEST(nvme_command, properties_features_logs_and_datasets_come_back_as_they_went) {
  command what;
  put(what, property_fields{.wide = true, .offset = 0x14, .value = 0x1122334455667788});
  EXPECT_TRUE(property_of(what).wide);
  EXPECT_EQ(property_of(what).value, 0x1122334455667788U);
  put(what, feature_fields{.feature = 7, .save = true, .select = 3, .value = 0x30003});
  EXPECT_EQ(what.dwords[0], 0x80000307U);
  EXPECT_EQ(feature_of(what).value, 0x30003U);
  put(what, log_fields{.page = 0x70, .bytes = 0x80000, .offset = 0x1'0000'0004, .retain_event = true});
  EXPECT_EQ(what.dwords[0], 0xffff8070U);
  EXPECT_EQ(what.dwords[1], 1U);
  EXPECT_EQ(log_of(what).bytes, 0x80000U);
  EXPECT_EQ(log_of(what).offset, 0x1'0000'0004U);
  put(what, dataset_fields{.ranges = 256, .deallocate = true});
  EXPECT_EQ(dataset_of(what).ranges, 256);
  EXPECT_EQ(what.dwords[1], 4U);
}

TEST(nvme_command, ranges_of_dataset_management_are_sixteen_bytes_each) {
  std::array<std::byte, 32> wire{};
  encode(dataset_range{.first = 0x0102, .count = 0x0304}, std::span(wire).first(16));
  encode(dataset_range{.first = 5, .count = 6}, std::span(wire).last(16));
  EXPECT_EQ(part(wire, 0, 16), bytes_of({0, 0, 0, 0, 4, 3, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(decode_dataset_ranges(wire),
            (std::vector<dataset_range>{{.first = 0x0102, .count = 0x0304}, {.first = 5, .count = 6}}));
  EXPECT_EQ(code_of([&] { static_cast<void>(decode_dataset_ranges(std::span(wire).first(17))); }),
            weft::errc::malformed);
}

TEST(nvme_completion, status_and_do_not_retry_are_above_the_phase_tag) {
  const completion what{.result = 0x0102030405060708,
                        .queue_head = 5,
                        .queue_id = 0,
                        .id = 0x1234,
                        .status = status::lba_out_of_range,
                        .do_not_retry = true};
  std::array<std::byte, completion_bytes> wire;
  encode(what, wire);
  EXPECT_EQ(part(wire, 0, 16), bytes_of({8, 7, 6, 5, 4, 3, 2, 1, 5, 0, 0, 0, 0x34, 0x12, 0x00, 0x81}));
  EXPECT_EQ(decode_completion(wire), what);
  EXPECT_EQ(code_of([&] { static_cast<void>(decode_completion(std::span(wire).first(15))); }), weft::errc::malformed);
}

TEST(nvme_status, words_name_the_status_and_its_number) {
  EXPECT_EQ(words_of(status::lba_out_of_range), "LBA out of range (0x080)");
  EXPECT_EQ(words_of(status::connect_invalid_parameters, true), "connect parameters invalid (0x182)");
  EXPECT_EQ(words_of(status::write_to_read_only_range), "attempted write to read only range (0x182)");
  EXPECT_EQ(words_of(static_cast<status>(0x7ff)), "unknown status (0x7ff)");
  EXPECT_EQ(words_of(reject_reason::invalid_send_queue_size), "an invalid send queue size (4)");
  EXPECT_EQ(words_of(static_cast<reject_reason>(99)), "an unknown reason (99)");
}

TEST(nvme_set_up, private_data_are_as_linux_sends_them) {
  const auto request = encode(cm_request{.queue_id = 2, .receive_queue_size = 128, .send_queue_size = 127});
  EXPECT_EQ(part(request, 0, 10), bytes_of({0, 0, 2, 0, 128, 0, 127, 0, 0, 0}));
  EXPECT_EQ(decode_cm_request(request)->send_queue_size, 127);
  EXPECT_FALSE(decode_cm_request(std::span(request).first(31)));
  const auto reply = encode(cm_reply{.receive_queue_size = 128});
  EXPECT_EQ(part(reply, 0, 4), bytes_of({0, 0, 128, 0}));
  EXPECT_EQ(decode_cm_reply(reply)->receive_queue_size, 128);
  const auto rejection = encode(cm_rejection{.reason = reject_reason::no_resources});
  EXPECT_EQ(part(rejection, 0, 4), bytes_of({0, 0, 6, 0}));
  EXPECT_EQ(decode_cm_rejection(rejection)->reason, reject_reason::no_resources);
  EXPECT_FALSE(decode_cm_rejection({}));
}

TEST(nvme_set_up, private_data_may_be_padded_by_the_fabric) {
  std::array<std::byte, 56> padded{};
  padded[2] = std::byte{1};
  EXPECT_EQ(decode_cm_request(padded)->queue_id, 1);
}

TEST(nvme_set_up, data_of_connect_come_back_as_they_went) {
  connect_data what;
  what.host_id = *parse_identifier("11111111-2222-3333-4444-555555555555");
  what.controller = 5;
  what.subsystem = "nqn.2014-08.org.example:disk";
  what.host = "nqn.2014-08.org.example:host";
  std::vector<std::byte> wire(connect_data::bytes);
  encode(what, wire);
  EXPECT_EQ(part(wire, 14, 4), bytes_of({0x55, 0x55, 5, 0}));
  EXPECT_EQ(part(wire, 256, 32), text(what.subsystem, 32, '\0'));
  EXPECT_EQ(part(wire, 512, 32), text(what.host, 32, '\0'));
  EXPECT_EQ(decode_connect_data(wire), what);
  EXPECT_EQ(code_of([&] { static_cast<void>(decode_connect_data(std::span(wire).first(1023))); }),
            weft::errc::malformed);
}

TEST(nvme_set_up, a_name_without_an_end_or_with_odd_characters_is_no_name) {
  std::vector<std::byte> wire(connect_data::bytes, std::byte{'n'});
  EXPECT_EQ(decode_connect_data(wire).subsystem, "");
  EXPECT_EQ(decode_connect_data(wire).host, "");
  EXPECT_FALSE(is_nqn(std::string("nqn.") + std::string(longest_nqn - 3, 'x')));
  EXPECT_TRUE(is_nqn(std::string("nqn.") + std::string(longest_nqn - 4, 'x')));
  EXPECT_FALSE(is_nqn("nqn.2014\x1b[2J"));
  EXPECT_FALSE(is_nqn("nqn."));
  EXPECT_FALSE(is_nqn("iqn.2014"));
}

TEST(nvme_set_up, identifiers_have_one_form) {
  const std::string uuid = "01234567-89ab-cdef-0123-456789abcdef";
  EXPECT_EQ(to_string(*parse_identifier(uuid)), uuid);
  for (const char* const wrong : {"", "01234567-89ab-cdef-0123-456789abcde", "01234567+89ab-cdef-0123-456789abcdef",
                                  "g1234567-89ab-cdef-0123-456789abcdef", "01234567-89ab-cdef-0123-456789abcdef0"})
    EXPECT_FALSE(parse_identifier(wrong)) << wrong;
}

TEST(nvme_set_up, capabilities_carry_the_depth_of_queues) {
  const auto property = encode(controller_capabilities{.max_queue_entries = 127, .ready_timeout = 15});
  EXPECT_EQ(property, 0x20'0f01'007fU);
  EXPECT_EQ(decode_capabilities(property).max_queue_entries, 127);
  EXPECT_EQ(decode_capabilities(property).ready_timeout, 15);
}

TEST(nvme_discovery, the_page_tells_where_subsystems_are) {
  const discovery_entry disk{.family = address_family::ipv6,
                             .port_id = 1,
                             .service = "4420",
                             .subsystem = "nqn.2014-08.org.example:disk",
                             .address = "fd77::2"};
  const auto page = encode(discovery_log{.generation = 9, .entries = {disk, disk}});
  ASSERT_EQ(page.size(), 3072U);
  EXPECT_EQ(part(page, 0, 18), bytes_of({9, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(part(page, 1024, 10), bytes_of({1, 2, 2, 2, 1, 0, 0xff, 0xff, 32, 0}));
  EXPECT_EQ(part(page, 1024 + 32, 8), text("4420", 8, ' '));
  EXPECT_EQ(part(page, 1024 + 256, 40), text(disk.subsystem, 40, '\0'));
  EXPECT_EQ(part(page, 1024 + 512, 10), text("fd77::2", 10, ' '));
  EXPECT_EQ(part(page, 1024 + 768, 3), bytes_of({1, 1, 1}));
  EXPECT_EQ(decode_discovery_header(page).entries, 2U);
  EXPECT_EQ(decode_discovery_header(page).generation, 9U);
  EXPECT_EQ(decode_discovery_entry(std::span(page).subspan(2048)), disk);
}

TEST(nvme_discovery, a_page_that_is_cut_short_or_of_another_format_is_malformed) {
  auto page = encode(discovery_log{.generation = 1, .entries = {}});
  EXPECT_EQ(code_of([&] { static_cast<void>(decode_discovery_header(std::span(page).first(1023))); }),
            weft::errc::malformed);
  EXPECT_EQ(code_of([&] { static_cast<void>(decode_discovery_entry(std::span(page).first(1023))); }),
            weft::errc::malformed);
  page[16] = std::byte{1};
  EXPECT_EQ(code_of([&] { static_cast<void>(decode_discovery_header(page)); }), weft::errc::malformed);
}

TEST(nvme_identify, a_controller_has_its_fields_where_a_kernel_looks_for_them) {
  controller_identity what;
  what.serial = "12345";
  what.model = "a disk";
  what.firmware = "0.1";
  what.max_transfer_shift = 5;
  what.controller = 0x0102;
  what.async_event_limit = 3;
  what.error_log_entries = 63;
  what.log_attributes = 4;
  what.keep_alive_granularity = 10;
  what.max_commands = 128;
  what.namespaces = 2;
  what.optional_commands = optional_command::compare | optional_command::write_zeroes;
  what.volatile_write_cache = true;
  what.sgls = sgl_support::supported | sgl_support::keyed | sgl_support::in_capsule_offset;
  what.subsystem = "nqn.2014-08.org.example:disk";
  what.command_capsule_bytes = 64 + 16384;
  what.completion_capsule_bytes = 16;
  what.max_descriptors = 1;
  std::vector<std::byte> wire(identify_bytes);
  encode(what, wire);
  EXPECT_EQ(part(wire, 4, 20), text("12345", 20, ' '));
  EXPECT_EQ(part(wire, 24, 40), text("a disk", 40, ' '));
  EXPECT_EQ(part(wire, 64, 8), text("0.1", 8, ' '));
  EXPECT_EQ(part(wire, 77, 7), bytes_of({5, 2, 1, 0, 4, 1, 0}));
  EXPECT_EQ(wire[111], std::byte{1});
  EXPECT_EQ(wire[259], std::byte{3});
  EXPECT_EQ(part(wire, 261, 2), bytes_of({4, 63}));
  EXPECT_EQ(part(wire, 320, 2), bytes_of({10, 0}));
  EXPECT_EQ(part(wire, 512, 10), bytes_of({0x66, 0x44, 128, 0, 2, 0, 0, 0, 9, 0}));
  EXPECT_EQ(wire[525], std::byte{7});
  EXPECT_EQ(part(wire, 536, 4), bytes_of({5, 0, 0x10, 0}));
  EXPECT_EQ(part(wire, 768, 40), text(what.subsystem, 40, '\0'));
  EXPECT_EQ(part(wire, 1792, 12), bytes_of({4, 4, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(decode_controller(wire), what);
}

TEST(nvme_identify, a_namespace_has_its_fields_where_a_kernel_looks_for_them) {
  namespace_identity what{.blocks = 0x0102030405060708,
                          .used_blocks = 5,
                          .block_shift = 12,
                          .shared = true,
                          .write_protected = true,
                          .zeroed_when_deallocated = true,
                          .id = *parse_identifier("01234567-89ab-cdef-0123-456789abcdef")};
  std::vector<std::byte> wire(identify_bytes);
  encode(what, wire);
  EXPECT_EQ(part(wire, 0, 17), bytes_of({8, 7, 6, 5, 4, 3, 2, 1, 8, 7, 6, 5, 4, 3, 2, 1, 5}));
  EXPECT_EQ(part(wire, 24, 10), bytes_of({1, 0, 0, 0, 0, 0, 1, 0, 0, 1}));
  EXPECT_EQ(wire[99], std::byte{1});
  EXPECT_EQ(part(wire, 104, 4), bytes_of({0x01, 0x23, 0x45, 0x67}));
  EXPECT_EQ(part(wire, 128, 4), bytes_of({0, 0, 12, 0}));
  EXPECT_EQ(decode_namespace(wire), what);
  for (const int shift : {0, 8, 21, 255}) {
    wire[130] = static_cast<std::byte>(shift);
    EXPECT_EQ(code_of([&] { static_cast<void>(decode_namespace(wire)); }), weft::errc::malformed);
  }
}

TEST(nvme_identify, data_that_are_cut_short_are_malformed) {
  const std::vector<std::byte> wire(identify_bytes - 1);
  EXPECT_EQ(code_of([&] { static_cast<void>(decode_controller(wire)); }), weft::errc::malformed);
  EXPECT_EQ(code_of([&] { static_cast<void>(decode_namespace(wire)); }), weft::errc::malformed);
  EXPECT_EQ(code_of([&] { static_cast<void>(decode_namespace_list(wire)); }), weft::errc::malformed);
}

TEST(nvme_identify, a_capsule_size_that_overflows_is_cut) {
  std::vector<std::byte> wire(identify_bytes);
  store<std::uint32_t>(wire, 1792, 0xffffffff);
  EXPECT_EQ(decode_controller(wire).command_capsule_bytes, 0xfffffff0U);
}

TEST(nvme_identify, a_list_of_namespaces_ends_at_zero_and_grows) {
  std::vector<std::byte> wire(identify_bytes);
  encode_namespace_list(std::array<std::uint32_t, 3>{1, 2, 9}, wire);
  EXPECT_EQ(part(wire, 0, 16), bytes_of({1, 0, 0, 0, 2, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(decode_namespace_list(wire), (std::vector<std::uint32_t>{1, 2, 9}));
  store<std::uint32_t>(wire, 4, 1);
  EXPECT_EQ(code_of([&] { static_cast<void>(decode_namespace_list(wire)); }), weft::errc::malformed);
  const std::vector<std::uint32_t> many(2000, 1);
  encode_namespace_list(many, wire);  // as many as fit
}

TEST(nvme_identify, descriptors_name_the_namespace_and_its_command_set) {
  std::vector<std::byte> wire(identify_bytes);
  encode_descriptors(*parse_identifier("01234567-89ab-cdef-0123-456789abcdef"), wire);
  EXPECT_EQ(part(wire, 0, 8), bytes_of({2, 16, 0, 0, 0x01, 0x23, 0x45, 0x67}));
  EXPECT_EQ(part(wire, 20, 6), bytes_of({4, 1, 0, 0, 0, 0}));
}

TEST(nvme_logs, errors_and_health_come_back_as_they_went) {
  std::vector<std::byte> wire(health_bytes);
  const error_entry failed{
      .count = 3, .queue_id = 1, .command_id = 77, .status = status::write_fault, .block = 4096, .nsid = 1};
  encode(failed, wire);
  EXPECT_EQ(decode_error_entry(wire), failed);
  EXPECT_EQ(part(wire, 8, 8), bytes_of({1, 0, 77, 0, 0x00, 0x05, 0xff, 0xff}));
  const health now{.units_read = 1, .units_written = 2, .reads = 3, .writes = 4, .media_errors = 5, .error_entries = 6};
  encode(now, wire);
  EXPECT_EQ(decode_health(wire), now);
  EXPECT_EQ(wire[32], std::byte{1});
  EXPECT_EQ(wire[80], std::byte{4});
  encode_firmware("0.1", wire);
  EXPECT_EQ(wire[0], std::byte{1});
  EXPECT_EQ(part(wire, 8, 8), text("0.1", 8, ' '));
}

TEST(nvme_logs, an_event_names_its_log_page) {
  EXPECT_EQ(encode(async_event{.type = 2, .information = 0, .page = 4}), 0x040002U);
  EXPECT_EQ(decode_async_event(0x70f002).page, 0x70);
  EXPECT_EQ(decode_async_event(0x70f002).information, 0xf0);
}

}  // namespace
}  // namespace nvme
