/* The scheduler: what jobs get, alone and in company, and in which order. */
#include "tests/unit/jobs.h"

#include <pthread.h>

static void test_one(void **state)
{
    bl_model *m = stub_open(&(stub_options){.context = 4096});
    bl_scheduler *s = start(m, 4, 4, 64);
    client *c = new_client(m, 10, 20, 1);
    c->job.logprobs = true;
    c->job.top_logprobs = 3;
    submit(s, c);
    expect(c, BL_FINISH_LENGTH, 20);
    assert_int_equal(c->live_at_end, 0);
    assert_int_equal(c->tops, 3);
    assert_true(c->top_logprob == c->logprob[19]); /* greedy: the token is the likeliest one */
    assert_true(c->logprob[0] < 0 && c->logprob[0] > -10);
    bl_scheduler_stats t;
    bl_scheduler_read(s, &t);
    assert_int_equal(t.prompt_tokens, 10);
    assert_int_equal(t.generated_tokens, 20);
    assert_int_equal(t.finished, 1);
    assert_int_equal(t.running + t.waiting + t.used_tokens, 0);
    assert_int_equal(bl_histogram_count(&t.first_token), 1);
    assert_int_equal(bl_histogram_count(&t.inter_token), 19);
    free(c);
    end(s, m);
}

/* The last token that is handed out is not run: nobody needs what follows it. */
static void test_last_token_is_not_run(void **state)
{
    bl_model *m = stub_open(&(stub_options){.context = 4096});
    bl_scheduler *s = start(m, 4, 4, 64);
    int before = stub_counted(m)->passes;
    client *c = new_client(m, 10, 5, 1);
    submit(s, c);
    expect(c, BL_FINISH_LENGTH, 5);
    assert_int_equal(stub_counted(m)->passes - before, 5); /* the prompt and four tokens */
    free(c);
    end(s, m);
}

typedef struct feeder {
    pthread_t thread;
    bl_scheduler *s;
    client *clients[40];
} feeder;

static void *feed(void *arg)
{
    feeder *f = arg;
    for (int i = 0; i < 40; i++) {
        bl_job *j = &f->clients[i]->job;
        while (bl_scheduler_submit(f->s, &j, 1) == BL_SUBMIT_FULL)
            usleep(200);
        if (i % 5 == 4)
            bl_scheduler_cancel(f->s, &f->clients[i]->job);
    }
    return NULL;
}

/* Many threads, prompts of all lengths in small pieces, some cancelled: each result is that of the job alone. */
static void test_many(void **state)
{
    bl_model *m = stub_open(&(stub_options){.context = 4096, .step_us = 100});
    bl_scheduler *s = start(m, 8, 6, 24);
    feeder feeders[4];
    for (int t = 0; t < 4; t++) {
        feeders[t].s = s;
        for (int i = 0; i < 40; i++)
            feeders[t].clients[i] = new_client(m, 1 + (i * 37 + t * 11) % 90, 1 + (i * 13 + t) % 40, (uint64_t)(t * 100 + i));
        assert_int_equal(pthread_create(&feeders[t].thread, NULL, feed, &feeders[t]), 0);
    }
    for (int t = 0; t < 4; t++)
        pthread_join(feeders[t].thread, NULL);
    for (int t = 0; t < 4; t++)
        for (int i = 0; i < 40; i++) {
            client *c = feeders[t].clients[i];
            wait_for(&c->done, 1);
            expect(c, c->why, c->why == BL_FINISH_CANCELLED ? c->count : (int)c->job.max_tokens);
            assert_true(c->why == BL_FINISH_LENGTH || i % 5 == 4);
            free(c);
        }
    assert_in_range(stub_counted(m)->largest, 2, 8);
    assert_in_range(stub_counted(m)->most_tokens, 16, 24);
    bl_scheduler_stats t;
    bl_scheduler_read(s, &t);
    assert_int_equal(t.finished + t.cancelled, 160);
    assert_int_equal(t.running + t.waiting + t.used_tokens, 0);
    end(s, m);
}

static void test_together(void **state)
{
    bl_model *m = stub_open(&(stub_options){.context = 4096});
    bl_scheduler *s = start(m, 8, 0, 64);
    int before = stub_counted(m)->passes;
    client *c[8];
    bl_job *jobs[8];
    for (int i = 0; i < 8; i++) {
        c[i] = new_client(m, 4, 10, (uint64_t)i);
        jobs[i] = &c[i]->job;
    }
    assert_int_equal(bl_scheduler_submit(s, jobs, 8), BL_SUBMIT_TAKEN);
    for (int i = 0; i < 8; i++)
        expect(c[i], BL_FINISH_LENGTH, 10);
    assert_int_equal(stub_counted(m)->largest, 8);
    assert_int_equal(stub_counted(m)->passes - before, 10);
    for (int i = 0; i < 8; i++)
        free(c[i]);
    end(s, m);
}

static void test_limits(void **state)
{
    bl_model *m = stub_open(&(stub_options){.context = 4096, .step_us = 1000});
    bl_scheduler *s = start(m, 2, 1, 64);
    client *c[5];
    bl_job *jobs[5];
    for (int i = 0; i < 5; i++) {
        c[i] = new_client(m, 4, i < 2 ? 400 : 5, (uint64_t)i);
        jobs[i] = &c[i]->job;
    }
    assert_int_equal(bl_scheduler_submit(s, jobs, 4), BL_SUBMIT_FULL); /* none of them */
    submit(s, c[0]);
    submit(s, c[1]);
    submit(s, c[2]);
    assert_int_equal(bl_scheduler_submit(s, &jobs[3], 1), BL_SUBMIT_FULL);
    wait_for(&c[0]->count, 3);
    assert_int_equal(stub_counted(m)->live, 2);
    assert_int_equal(c[2]->count, 0);
    bl_scheduler_cancel(s, jobs[2]); /* out of the queue */
    wait_for(&c[2]->done, 1);
    assert_int_equal(c[2]->why, BL_FINISH_CANCELLED);
    submit(s, c[3]);
    bl_scheduler_cancel(s, jobs[0]);
    expect(c[3], BL_FINISH_LENGTH, 5);
    assert_int_equal(c[0]->why, BL_FINISH_CANCELLED);
    bl_scheduler_stop(s, false);
    assert_int_equal(bl_scheduler_submit(s, &jobs[4], 1), BL_SUBMIT_STOPPED);
    expect(c[1], BL_FINISH_LENGTH, 400); /* those that run are not touched */
    for (int i = 0; i < 5; i++)
        free(c[i]);
    end(s, m);
}

/* Drawn tokens depend on the seed alone. */
static void test_seed(void **state)
{
    bl_model *m = stub_open(&(stub_options){.context = 4096});
    bl_scheduler *s = start(m, 16, 16, 24);
    client *alone = new_client(m, 50, 60, 9), *crowd[12];
    alone->job.sampling = (bl_sampling){.temperature = 1, .top_p = 1, .seed = 7};
    submit(s, alone);
    expect(alone, BL_FINISH_LENGTH, 60);
    for (int i = 0; i < 12; i++) {
        crowd[i] = new_client(m, 50, 60, i % 2 ? 9 : (uint64_t)i);
        crowd[i]->job.sampling = alone->job.sampling;
        crowd[i]->job.sampling.seed = i == 11 ? 8 : 7;
        submit(s, crowd[i]);
    }
    for (int i = 0; i < 12; i++) {
        expect(crowd[i], BL_FINISH_LENGTH, 60);
        int same = memcmp(crowd[i]->out, alone->out, 60 * sizeof *alone->out) == 0;
        assert_int_equal(same, i % 2 && i != 11);
        free(crowd[i]);
    }
    free(alone);
    end(s, m);
}

/* Penalties and biases are a job's own: the same in a crowd of others, and in a place that was somebody else's before. */
static void test_adjusted(void **state)
{
    static const int greedy[4] = {6, 12, 18, 4}; /* one of each other kind */
    float bias[STUB_VOCAB] = {0};
    bias[3 + 'q'] = 1;
    const bl_adjust kinds[5] = {{0}, {.presence = 1.25f}, {.frequency = 0.5f}, {.repetition = 4}, {.repetition = 0.5f, .frequency = 2, .bias = bias}};
    bl_model *m = stub_open(&(stub_options){.context = 4096});
    bl_scheduler *s = start(m, 5, 40, 24);
    client *c[20];
    for (int i = 0; i < 20; i++) {
        c[i] = new_client(m, 30, 40 + i, 9);
        c[i]->job.adjust = kinds[i % 5];
        c[i]->job.sampling = (bl_sampling){.temperature = i % 2 ? 1 : 0, .top_p = 1, .seed = 3};
        submit(s, c[i]);
    }
    for (int i = 0; i < 20; i++)
        expect(c[i], BL_FINISH_LENGTH, 40 + i);
    for (int i = 0; i < 4; i++)
        assert_memory_not_equal(c[0]->out, c[greedy[i]]->out, 40 * sizeof *c[0]->out);
    for (int i = 0; i < 20; i++)
        free(c[i]);
    end(s, m);
}

/* The stop token would come as the eleventh; it has to wait. */
static void test_min_tokens(void **state)
{
    static const int32_t stops[1] = {STUB_EOS};
    bl_model *m = stub_open(&(stub_options){.context = 4096, .eos_length = 20});
    bl_scheduler *s = start(m, 4, 4, 64);
    for (int least = 0; least < 30; least += 7) {
        client *c = new_client(m, 10, 100, 1);
        c->job.stop_ids = stops;
        c->job.stop_count = 1;
        c->job.min_tokens = least;
        submit(s, c);
        expect(c, BL_FINISH_STOP_TOKEN, least < 11 ? 11 : least + 1);
        free(c);
    }
    end(s, m);
}

/* A short prompt does not wait for a long one, and neither stops what generates. */
static void test_fair(void **state)
{
    bl_model *m = stub_open(&(stub_options){.context = 8192, .step_us = 200});
    bl_scheduler *s = start(m, 8, 8, 32);
    client *runs = new_client(m, 4, 500, 1), *long_one = new_client(m, 5000, 1, 2), *brief = new_client(m, 8, 5, 3);
    submit(s, runs);
    wait_for(&runs->count, 1);
    submit(s, long_one);
    int before = runs->count;
    submit(s, brief);
    wait_for(&brief->done, 1);
    assert_int_equal(long_one->count, 0);
    expect(long_one, BL_FINISH_LENGTH, 1);
    assert_in_range(runs->count - before, 100, 400); /* a token in each of the steps */
    expect(brief, BL_FINISH_LENGTH, 5);
    expect(runs, BL_FINISH_LENGTH, 500);
    free(runs);
    free(long_one);
    free(brief);
    end(s, m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one),
        cmocka_unit_test(test_last_token_is_not_run),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_seed),
        cmocka_unit_test(test_adjusted),
        cmocka_unit_test(test_min_tokens),
        cmocka_unit_test(test_fair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
