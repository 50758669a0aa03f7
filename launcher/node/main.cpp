#include "launcher/node/node.h"

int main(int argc, char** argv) {
  return surefoot::run_node(argc, argv, {});
}
