// The instructions of AMX that repjax's kernel has, for processors without them: a handler of SIGILL
// executes them, on tiles in memory, by their definition in Intel's Software Developer's Manual
// (volume 2, and the exception classes AMX-E1 to AMX-E6).  Whatever else it meets ends the process.
//
// Loaded by LD_PRELOAD, it replaces repjax_has_amx of the kernel (instruction_sets.cc), whose call
// installs the handler.  AMX_EMULATOR_FAULT asks for an error, as a control of the tests.

#include <immintrin.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // of its own intrinsic functions
#endif

namespace {

constexpr int kTiles = 8, kRows = 16, kBytes = 64;

struct Tiles {
  bool configured = false;
  int rows[kTiles] = {}, bytes[kTiles] = {};
  uint8_t data[kTiles][kRows][kBytes] = {};
};
thread_local Tiles tiles;

enum class Fault { kNone, kUnsigned, kSwapped, kLastRow, kLate } fault;
constexpr uint64_t kLateProducts = 1000;

[[noreturn]] void fail(const char* why, const uint8_t* at) {
  char line[200];
  int n = snprintf(line, sizeof line, "amx_emulator: %s:", why);
  for (int i = 0; i < 11; ++i) n += snprintf(line + n, sizeof line - n, " %02x", at[i]);
  line[n++] = '\n';
  if (write(STDERR_FILENO, line, n) < 0) _exit(3);
  abort();
}

}  // namespace

// How many products there were, and how many threads have tiles now.
extern "C" {
std::atomic<uint64_t> amx_products{0};
std::atomic<int64_t> amx_threads{0};
}

namespace {

// An instruction with a VEX prefix of three bytes, and its parts.
struct Instruction {
  const uint8_t* code;
  greg_t* registers;
  int length = 5;
  unsigned prefix, opcode, mod, reg, rm, vvvv;
  uint64_t address = 0, stride = 0;  // address: base and displacement
  bool has_sib = false;

  uint64_t value(int number) const {
    static const int names[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                  REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                  REG_R12, REG_R13, REG_R14, REG_R15};
    return registers[names[number]];
  }

  Instruction(const uint8_t* code, greg_t* registers) : code(code), registers(registers) {
    if (code[0] != 0xC4) fail("not an instruction with a VEX prefix of three bytes", code);
    const bool r = !(code[1] & 0x80), x = !(code[1] & 0x40), b = !(code[1] & 0x20);
    if ((code[1] & 0x1F) != 2) fail("not of the map 0F38", code);
    if (code[2] & 0x80) fail("W is not 0", code);
    if (code[2] & 0x04) fail("L is not 0", code);
    vvvv = ~code[2] >> 3 & 15;
    prefix = code[2] & 3;
    opcode = code[3];
    mod = code[4] >> 6;
    reg = code[4] >> 3 & 7;
    rm = code[4] & 7;
    if (r) fail("a tile above 7", code);
    if (mod == 3) {
      if (x || b) fail("a tile above 7", code);
      return;
    }
    const bool relative = mod == 0 && rm == 5;
    bool has_base = !relative;
    unsigned base = rm + 8 * b;
    if (rm == 4) {
      has_sib = true;
      const uint8_t sib = code[length++];
      const unsigned index = (sib >> 3 & 7) + 8 * x;
      base = (sib & 7) + 8 * b;
      has_base = !(mod == 0 && (sib & 7) == 5);
      if (index != 4) stride = value(index) << (sib >> 6);
    }
    if (has_base) address = value(base);
    if (mod == 1) {
      address += int8_t(code[length++]);
    } else if (mod == 2 || !has_base) {
      int32_t displacement;
      memcpy(&displacement, code + length, sizeof displacement);
      address += displacement;
      length += 4;
    }
    if (relative) address += uint64_t(code) + length;
  }

  bool is(unsigned wanted_prefix, unsigned wanted_opcode) const {
    return prefix == wanted_prefix && opcode == wanted_opcode;
  }
  void need(bool condition, const char* why) const {
    if (!condition) fail(why, code);
  }
};

enum { kNoPrefix, k66, kF3, kF2 };

void load_configuration(const Instruction& i) {
  uint8_t c[64];
  memcpy(c, reinterpret_cast<const void*>(i.address + i.stride), sizeof c);
  i.need(c[0] == 1, "a palette that is not 1");
  i.need(c[1] == 0, "a start_row that is not 0");
  for (int at = 2; at < 16; ++at) i.need(!c[at], "reserved bytes that are not 0");
  for (int at = 32; at < 48; ++at) i.need(!c[at], "reserved bytes that are not 0");
  for (int at = 56; at < 64; ++at) i.need(!c[at], "reserved bytes that are not 0");
  if (!tiles.configured) ++amx_threads;
  tiles = {};
  tiles.configured = true;
  for (int tile = 0; tile < kTiles; ++tile) {
    const int rows = c[48 + tile], bytes = c[16 + 2 * tile] | c[17 + 2 * tile] << 8;
    i.need(rows <= kRows && bytes <= kBytes, "a tile that is too large");
    i.need((rows == 0) == (bytes == 0), "a tile without rows or without columns");
    tiles.rows[tile] = rows;
    tiles.bytes[tile] = bytes;
  }
}

void need_tile(const Instruction& i, unsigned tile) {
  i.need(tiles.configured, "tiles are not configured");
  i.need(tile < kTiles && tiles.rows[tile] > 0, "a tile that is not configured");
}

void move(const Instruction& i, bool load) {
  need_tile(i, i.reg);
  i.need(i.has_sib, "an address without SIB");
  if (load) memset(tiles.data[i.reg], 0, sizeof tiles.data[i.reg]);
  for (int row = 0; row < tiles.rows[i.reg]; ++row) {
    void* const memory = reinterpret_cast<void*>(i.address + row * i.stride);
    uint8_t* const tile = tiles.data[i.reg][row];
    memcpy(load ? tile : memory, load ? memory : tile, tiles.bytes[i.reg]);
  }
}

// TDPBSSD tmm1, tmm2, tmm3, which are reg, rm and vvvv.
void multiply(const Instruction& i) {
  const unsigned to = i.reg, a = i.rm, b = i.vvvv;
  for (unsigned tile : {to, a, b}) need_tile(i, tile);
  i.need(to != a && to != b && a != b, "tiles that are the same");
  for (unsigned tile : {to, a, b}) i.need(tiles.bytes[tile] % 4 == 0, "not whole integers");
  i.need(tiles.rows[to] == tiles.rows[a], "other rows in the result");
  i.need(tiles.bytes[to] == tiles.bytes[b], "other columns in the result");
  i.need(tiles.bytes[a] / 4 == tiles.rows[b], "other terms");
  ++amx_products;

  const int rows = tiles.rows[to], columns = tiles.bytes[to] / 4, terms = tiles.bytes[a];
  uint8_t(*x)[kBytes] = tiles.data[a];
  uint8_t(*y)[kBytes] = tiles.data[b];
  if (fault == Fault::kSwapped) std::swap(x, y);
  int32_t right[kBytes][kRows] = {};  // [term][column]
  for (int k = 0; k < terms; ++k) {
    for (int n = 0; n < columns; ++n) {
      const uint8_t byte = y[k / 4][4 * n + k % 4];
      right[k][n] = fault == Fault::kUnsigned ? int(byte) : int8_t(byte);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    uint32_t sums[kRows] = {};  // modulo 2**32
    if (m < rows) {
      memcpy(sums, tiles.data[to][m], 4 * columns);
      for (int k = 0; k < terms; ++k) {
        const int32_t left = int8_t(x[m][k]);
        for (int n = 0; n < kRows; ++n) sums[n] += uint32_t(left * right[k][n]);
      }
    }
    if (fault == Fault::kLastRow && m == 4) continue;
    memcpy(tiles.data[to][m], sums, sizeof sums);
  }
  if (fault == Fault::kLate && amx_products > kLateProducts) tiles.data[to][0][0] ^= 1;
}

void handle(int, siginfo_t*, void* context) {
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const Instruction i(reinterpret_cast<const uint8_t*>(registers[REG_RIP]), registers);
  if (!i.is(kF2, 0x5E)) i.need(i.vvvv == 0, "vvvv is not 1111");
  if (i.is(kF2, 0x5E) && i.mod == 3) {
    multiply(i);
  } else if (i.is(kF2, 0x4B) && i.mod != 3) {
    move(i, true);
  } else if (i.is(kF3, 0x4B) && i.mod != 3) {
    move(i, false);
  } else if (i.is(kF2, 0x49) && i.mod == 3 && i.rm == 0) {
    need_tile(i, i.reg);
    memset(tiles.data[i.reg], 0, sizeof tiles.data[i.reg]);
  } else if (i.is(kNoPrefix, 0x49) && i.mod != 3 && i.reg == 0) {
    load_configuration(i);
  } else if (i.is(kNoPrefix, 0x49) && i.mod == 3 && i.reg == 0 && i.rm == 0) {
    if (tiles.configured) --amx_threads;
    tiles = {};
  } else {
    i.need(false, "another instruction");
  }
  registers[REG_RIP] += i.length;
}

}  // namespace

extern "C" int repjax_has_amx() {
  const char* const wanted = getenv("AMX_EMULATOR_FAULT");
  const char* const names[] = {"", "unsigned", "swapped", "last_row", "late"};
  for (int i = 0; wanted && i < 5; ++i) {
    if (!strcmp(wanted, names[i])) fault = Fault(i);
  }
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  return sigaction(SIGILL, &action, nullptr) == 0;
}

// c += a b by one instruction, with tiles of the sizes of the configuration: c is tile 0, a 1, b 2,
// in rows of so many bytes.
extern "C" void amx_multiply(const void* configuration, void* c, const void* a, const void* b,
                             int64_t row_c, int64_t row_a, int64_t row_b) {
  __asm__ volatile("" ::: "memory");
  _tile_loadconfig(configuration);
  _tile_loadd(0, c, row_c);
  _tile_loadd(1, a, row_a);
  _tile_loadd(2, b, row_b);
  _tile_dpbssd(0, 1, 2);
  _tile_stored(0, c, row_c);
  _tile_release();
}
