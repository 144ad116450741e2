// A plugin for qemu-user that counts the instructions of each function of a program, for tools/arm.
//
//   cc -O2 -shared -fPIC -o count.so count_instructions.c
//   qemu-aarch64 -plugin ./count.so,out=FILE PROGRAM ...
//
// FILE gets a line for each function, "COUNT SYMBOL", in no order. A block of code belongs to the
// function that it begins in. Programs of one thread only. The declarations are those of version 1
// of the plugin interface, whose header Debian has in no package.
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

struct qemu_plugin_tb;
struct qemu_plugin_insn;
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb* block);
struct qemu_plugin_insn* qemu_plugin_tb_get_insn(const struct qemu_plugin_tb* block, size_t index);
const char* qemu_plugin_insn_symbol(const struct qemu_plugin_insn* instruction);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id,
                                           void (*function)(uint64_t, struct qemu_plugin_tb*));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb* block, int operation,
                                              void* counter, uint64_t add);
void qemu_plugin_register_atexit_cb(uint64_t id, void (*function)(uint64_t, void*), void* data);
enum { kAddU64 = 0 };

EXPORT int qemu_plugin_version = 1;

struct Function {
  struct Function* next;
  uint64_t instructions;
  char name[];
};
static struct Function* functions;
static const char* path;

static uint64_t* counter_of(const char* name) {
  for (struct Function* f = functions; f; f = f->next)
    if (!strcmp(f->name, name)) return &f->instructions;
  struct Function* f = calloc(1, sizeof *f + strlen(name) + 1);
  if (!f) abort();
  strcpy(f->name, name);
  f->next = functions;
  functions = f;
  return &f->instructions;
}

static void translated(uint64_t id, struct qemu_plugin_tb* block) {
  (void)id;
  const char* name = qemu_plugin_insn_symbol(qemu_plugin_tb_get_insn(block, 0));
  qemu_plugin_register_vcpu_tb_exec_inline(block, kAddU64, counter_of(name ? name : "?"),
                                           qemu_plugin_tb_n_insns(block));
}

static void ended(uint64_t id, void* data) {
  (void)id, (void)data;
  FILE* file = fopen(path, "w");
  if (!file) abort();
  for (const struct Function* f = functions; f; f = f->next)
    fprintf(file, "%" PRIu64 " %s\n", f->instructions, f->name);
  fclose(file);
}

EXPORT int qemu_plugin_install(uint64_t id, const void* info, int count, char** arguments) {
  (void)info;
  if (count != 1 || strncmp(arguments[0], "out=", 4)) return 1;
  path = strdup(arguments[0] + 4);
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, ended, NULL);
  return 0;
}
