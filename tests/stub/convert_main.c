/* baleen convert alone, for tests that put something else under it. */
int cmd_convert(int argc, char **argv);

int main(int argc, char **argv)
{
    return cmd_convert(argc, argv);
}
