// Reads a stream's first shard with Enhanced Fan-Out until it has so many records, and prints what it found as JSON.
// Arguments: endpoint, name of the stream, ARN of the consumer, number of records.
const { KinesisClient, ListShardsCommand, SubscribeToShardCommand } = require("@aws-sdk/client-kinesis");

async function main(endpoint, StreamName, ConsumerARN, wanted) {
  const credentials = { accessKeyId: "a", secretAccessKey: "b" };
  const client = new KinesisClient({ endpoint, region: "us-east-1", credentials });
  const shards = (await client.send(new ListShardsCommand({ StreamName }))).Shards.map((shard) => shard.ShardId);
  const StartingPosition = { Type: "TRIM_HORIZON" };
  const answer = await client.send(new SubscribeToShardCommand({ ConsumerARN, ShardId: shards[0], StartingPosition }));
  const records = [];
  for await (const event of answer.EventStream) {
    for (const record of event.SubscribeToShardEvent.Records) {
      records.push([record.PartitionKey, Buffer.from(record.Data).toString("base64")]);
    }
    if (records.length >= Number(wanted)) break;
  }
  const handler = client.config.requestHandler.constructor.name;
  // The SDK would wait until the subscription ends by itself.
  process.stdout.write(JSON.stringify({ shards, records, handler }), () => process.exit(0));
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
