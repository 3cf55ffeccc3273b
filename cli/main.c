/* quire: see program.h. */
#include "cli/program.h"

int main(int argc, char **argv)
{
    return program_main(argc, argv, NULL);
}
