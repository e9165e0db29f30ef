// Nothing: the smallest program, to measure what starting one takes.
int main(void) { return 0; }
