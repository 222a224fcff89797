// Reads all shards of a stream with Enhanced Fan-Out at once, until it has so many records in all, and prints as JSON how many
// bytes of data these had, and the CPU seconds from the first subscription to the last record.
// Arguments: endpoint, ARN of the consumer, number of shards, number of records.
const { KinesisClient, SubscribeToShardCommand } = require("@aws-sdk/client-kinesis");

async function main(endpoint, ConsumerARN, shards, wanted) {
  const credentials = { accessKeyId: "a", secretAccessKey: "b" };
  const client = new KinesisClient({ endpoint, region: "us-east-1", credentials });
  const StartingPosition = { Type: "TRIM_HORIZON" };
  const before = process.cpuUsage();
  let [records, bytes] = [0, 0];

  async function read(ShardId) {
    const answer = await client.send(new SubscribeToShardCommand({ ConsumerARN, ShardId, StartingPosition }));
    for await (const event of answer.EventStream) {
      for (const record of event.SubscribeToShardEvent.Records) bytes += record.Data.length;
      records += event.SubscribeToShardEvent.Records.length;
      if (records === Number(wanted)) end();
    }
    throw new Error(`shard ${ShardId} ended when ${records} of ${wanted} records had come`);
  }

  function end() {
    const used = process.cpuUsage(before);
    const said = { bytes, seconds: (used.user + used.system) / 1e6 };
    // The SDK would wait until the subscriptions end by themselves.
    process.stdout.write(JSON.stringify(said), () => process.exit(0));
  }

  await Promise.all([...Array(Number(shards)).keys()].map((number) => read(`shardId-${String(number).padStart(12, "0")}`)));
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
