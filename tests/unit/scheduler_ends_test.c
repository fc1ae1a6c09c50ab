/* How jobs end before their last token: stops, cancelling, failures, no room, a broken device. */
#include "tests/unit/jobs.h"

/* Cancelled at once: at most the step that is under way ends. */
static void test_cancel(void **state)
{
    bl_model *m = stub_open(&(stub_options){.context = 4096, .step_us = 2000});
    bl_scheduler *s = start(m, 4, 4, 64);
    client *c = new_client(m, 4, 1000000, 1), *prompt = new_client(m, 5000, 10, 2);
    submit(s, c);
    wait_for(&c->count, 3);
    int passes = stub_counted(m)->passes;
    bl_scheduler_cancel(s, &c->job);
    wait_for(&c->done, 1);
    assert_int_equal(c->why, BL_FINISH_CANCELLED);
    assert_int_equal(c->live_at_end, 0);
    assert_in_range(stub_counted(m)->passes - passes, 0, 2);
    submit(s, prompt); /* 79 pieces */
    wait_for(&stub_counted(m)->passes, passes + 5);
    bl_scheduler_cancel(s, &prompt->job);
    wait_for(&prompt->done, 1);
    assert_int_equal(prompt->count, 0);
    assert_true(stub_counted(m)->passes < passes + 40);
    free(c);
    free(prompt);
    end(s, m);
}

static void test_stops(void **state)
{
    bl_model *m = stub_open(&(stub_options){.context = 4096, .eos_length = 14});
    bl_scheduler *s = start(m, 4, 4, 64);
    const int32_t eos = STUB_EOS;
    client *stop = new_client(m, 10, 20, 1), *sink = new_client(m, 10, 20, 1), *both = new_client(m, 10, 5, 1);
    stop->job.stop_ids = both->job.stop_ids = &eos;
    stop->job.stop_count = both->job.stop_count = 1;
    sink->sink_at = 3;
    submit(s, stop);
    submit(s, sink);
    submit(s, both);
    expect(stop, BL_FINISH_STOP_TOKEN, 5);
    assert_int_equal(stop->out[4], STUB_EOS);
    expect(sink, BL_FINISH_SINK, 3);
    expect(both, BL_FINISH_STOP_TOKEN, 5); /* a stop at the very last token is a stop */
    free(stop);
    free(sink);
    free(both);
    end(s, m);
}

/* A failing sequence takes nobody with it, whether it fails in its prompt or beside others that generate. */
static void test_failure(void **state)
{
    bl_model *m = stub_open(&(stub_options){.context = 4096, .step_us = 500});
    bl_scheduler *s = start(m, 8, 8, 16);
    client *c[4];
    for (int i = 0; i < 4; i++)
        c[i] = new_client(m, 30 + i, 40, (uint64_t)i);
    c[1]->prompt[0] = STUB_POISON;
    c[3]->prompt[30] = STUB_POISON;
    for (int i = 0; i < 4; i++)
        submit(s, c[i]);
    expect(c[0], BL_FINISH_LENGTH, 40);
    expect(c[2], BL_FINISH_LENGTH, 40);
    for (int i = 1; i < 4; i += 2) {
        wait_for(&c[i]->done, 1);
        assert_int_equal(c[i]->why, BL_FINISH_FAILED);
        assert_int_equal(c[i]->status, BL_E_INTERNAL);
        assert_int_equal(c[i]->count, 0);
    }
    for (int i = 0; i < 4; i++)
        free(c[i]);
    end(s, m);
}

static void test_no_memory(void **state)
{
    bl_model *m = stub_open(&(stub_options){.context = 4096, .max_sequences = 1});
    bl_scheduler *s = start(m, 8, 8, 16);
    client *c[5];
    bl_job *jobs[5];
    for (int i = 0; i < 5; i++) {
        c[i] = new_client(m, 20, 10, (uint64_t)i);
        jobs[i] = &c[i]->job;
    }
    assert_int_equal(bl_scheduler_submit(s, jobs, 5), BL_SUBMIT_TAKEN);
    for (int i = 0; i < 5; i++)
        expect(c[i], BL_FINISH_LENGTH, 10); /* one after the other */
    assert_int_equal(stub_counted(m)->largest, 1);
    bl_scheduler_stats t;
    bl_scheduler_read(s, &t);
    assert_int_equal(t.running + t.waiting, 0);
    for (int i = 0; i < 5; i++)
        free(c[i]);
    end(s, m);
}

/* Room for a whole job is taken when it starts: no job runs out of it halfway, and one that never fits fails alone. */
static void test_room(void **state)
{
    bl_model *m = stub_open(&(stub_options){.context = 4096, .room = 70});
    bl_scheduler *s = start(m, 8, 8, 64);
    client *c[5];
    bl_job *jobs[5];
    for (int i = 0; i < 5; i++) {
        c[i] = new_client(m, i == 3 ? 65 : 20, 10, (uint64_t)i);
        jobs[i] = &c[i]->job;
    }
    assert_int_equal(bl_scheduler_submit(s, jobs, 5), BL_SUBMIT_TAKEN);
    for (int i = 0; i < 5; i++)
        expect(c[i], i == 3 ? BL_FINISH_FAILED : BL_FINISH_LENGTH, i == 3 ? 0 : 10);
    assert_int_equal(stub_counted(m)->largest, 2); /* of 30 each */
    for (int i = 0; i < 5; i++)
        free(c[i]);
    end(s, m);
}

/* The device fails for good: what runs and what waits ends, and nothing more is taken. */
static void test_broken_device(void **state)
{
    bl_model *m = stub_open(&(stub_options){.context = 4096, .fault_after = 20});
    bl_scheduler *s = start(m, 2, 8, 64);
    client *c[5];
    bl_job *jobs[5];
    bl_error why = {0};
    assert_false(bl_scheduler_broken(s, &why));
    for (int i = 0; i < 5; i++) {
        c[i] = new_client(m, 20, 100, (uint64_t)i);
        jobs[i] = &c[i]->job;
    }
    assert_int_equal(bl_scheduler_submit(s, jobs, 5), BL_SUBMIT_TAKEN);
    for (int i = 0; i < 5; i++) {
        wait_for(&c[i]->done, 1);
        assert_int_equal(c[i]->why, BL_FINISH_FAILED);
    }
    assert_true(bl_scheduler_broken(s, &why));
    assert_string_equal(why.message, "the stub is broken");
    assert_int_equal(bl_scheduler_submit(s, jobs, 1), BL_SUBMIT_BROKEN);
    assert_int_equal(stub_counted(m)->live, 0);
    for (int i = 0; i < 5; i++)
        free(c[i]);
    end(s, m);
}

static void test_destroy_ends_all(void **state)
{
    bl_model *m = stub_open(&(stub_options){.context = 8192, .step_us = 1000});
    bl_scheduler *s = start(m, 2, 8, 32);
    client *c[6];
    for (int i = 0; i < 6; i++) {
        c[i] = new_client(m, 100, 100000, (uint64_t)i);
        submit(s, c[i]);
    }
    wait_for(&c[0]->count, 1);
    bl_scheduler_destroy(&s);
    assert_null(s);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(c[i]->done, 1);
        assert_int_equal(c[i]->why, BL_FINISH_CANCELLED);
        free(c[i]);
    }
    end(s, m);
}

static void test_refused(void **state)
{
    bl_model *m = stub_open(&(stub_options){.context = 8192});
    bl_scheduler *s;
    bl_error err = {0};
    assert_int_equal(bl_scheduler_create(&s, m, &(bl_scheduler_options){.max_running = 0, .step_tokens = 1}, &err), BL_E_USAGE);
    assert_null(s);
    end(s, m);
    m = stub_open(&(stub_options){.context = 8192, .max_sequences = -1}); /* not even one */
    bl_error_clear(&err);
    assert_int_equal(bl_scheduler_create(&s, m, &(bl_scheduler_options){.max_running = 2, .step_tokens = 1}, &err), BL_E_NOMEM);
    assert_null(s);
    end(s, m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_failure),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_broken_device),
        cmocka_unit_test(test_destroy_ends_all),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
